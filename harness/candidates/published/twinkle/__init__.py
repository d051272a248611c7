"""twinkle-kit: the step of its `TransformersModel` where ranks share a sequence."""
