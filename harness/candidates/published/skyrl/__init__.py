"""skyrl: Ulysses below its workers, for supervised and for reinforcement learning."""
