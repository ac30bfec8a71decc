"""How strong a chapter's checks are: wrong answers caught, mutants killed, correct variants passed."""
