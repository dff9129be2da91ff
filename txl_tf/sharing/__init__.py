"""Sharing models on the Hugging Face Hub."""
