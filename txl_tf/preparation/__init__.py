"""From raw text to records: options -> corpus -> texts -> vocabulary, ids and records."""
