"""What an exercise is: its declaration, inputs, and right and wrong answers. Exercise files import from here."""
