"""DeepSpeed: Ulysses attention, ALST for transformers models, its engine, tiled compute."""
