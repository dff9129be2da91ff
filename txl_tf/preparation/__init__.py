"""From raw text to records: options -> raw files -> plan -> vocabulary, ids and records."""
