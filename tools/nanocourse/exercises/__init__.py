"""What an exercise is: its declaration, its inputs, its answers, right and wrong. Exercise files import from here."""
