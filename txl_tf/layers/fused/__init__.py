"""The fused forward pass of a layer, with hand-written gradients."""
