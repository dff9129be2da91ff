"""Models in other formats: SavedModels, steps for LiteRT and ONNX, folders of the Hub."""
