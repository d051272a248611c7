"""OpenRLHF: the rings of its SFT and PPO trainers."""
