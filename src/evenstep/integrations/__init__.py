"""Use plans with Lightning, the Hugging Face Trainer, Accelerate and timm.

Import the module of the library you train with; importing `evenstep` loads none of them.
"""
