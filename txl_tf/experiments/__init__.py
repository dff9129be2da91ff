"""The paper's experiments on a trained model: context lengths and attention."""
