"""What `ci/gpu` is made of; the standard library is enough for all but what its steps run."""
