"""The records that store token ids."""
