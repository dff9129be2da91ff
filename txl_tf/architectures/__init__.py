"""The architectures beside Transformer-XL, and the choice by `ModelConfig.model_type`."""
