"""OpenRLHF: rings of its SFT and PPO trainers."""
