"""verl 0.6.1: the SFT trainer that it had until 0.7.0."""
