"""veomni: Ulysses, with its collator and its reduction of the loss."""
