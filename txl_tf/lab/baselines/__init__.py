"""The recurrent baselines of the paper, with the interface of `TransformerXL`."""
