"""The paper's figures of predicted against searched learning rates, one study each."""
