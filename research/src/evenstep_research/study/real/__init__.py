"""Networks that people train, from torchvision and transformers: what a plan is worth against one tuned rate."""
