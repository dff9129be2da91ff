"""Generation: ids drawn with a cache of keys and values, and texts that continue."""
