"""What the readout sees of the state, and what the loss cannot."""
