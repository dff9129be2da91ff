"""The search of the built site, ranked as Material's worker ranks: by lunr, with boosts."""

import collections
import html
import json
import math
import re

K1 = 1.2  # lunr's; the worker sets b = 0, so long texts have no disadvantage
# lunr's, which the index lacks.
STOP_WORDS = """
a able about across after all almost also am among an and any are as at be because been but by
can cannot could dear did do does either else ever every for from get got had has have he her
hers him his how however i if in into is it its just least let like likely may me might most
must my neither no nor not of off often on only or other our own rather said say says she should
since so some than that the their them then there these they this tis to too twas us wants was
we were what when where which while who whom why will with would yet you your
"""
_TAG = re.compile(r"<[^>]*>")


class SiteSearch:
    """The sections of a site, found as the search box of its pages finds them.

    Each word of a query is a prefix. A section scores by BM25, with the boosts of fields and pages;
    sections with more of the words, and whole pages, gain (`search` in the worker of Material).
    """

    def __init__(self, folder):
        index = json.loads((folder / "search" / "search_index.json").read_text(encoding="utf-8"))
        # Names of groups and look-arounds are the same in JavaScript and Python.
        self._separator = re.compile(index["config"]["separator"])
        self._boosts = {name: field["boost"] for name, field in index["config"]["fields"].items()}
        self._documents = index["docs"]
        self._left_out = frozenset(STOP_WORDS.split())
        # For each word and field, the number of its occurrences by document.
        self._postings = collections.defaultdict(lambda: collections.defaultdict(dict))
        for number, document in enumerate(self._documents):
            for field in self._boosts:
                words = [w for w in self._split(document.get(field, "")) if w not in self._left_out]
                for word, count in collections.Counter(words).items():
                    self._postings[word][field][number] = count

    def count_words(self):
        """Returns the number of words of each page, without its titles."""
        n_words = collections.Counter()
        for document in self._documents:
            page = document["location"].partition("#")[0]
            n_words[page] += len(html.unescape(_TAG.sub(" ", document["text"])).split())
        return n_words

    def find_pages(self, query, n_pages=3):
        """Returns the first pages that a query finds, such as "api/index.html"."""
        words = set(self._split(query))
        scores, found = collections.Counter(), collections.defaultdict(set)
        for word in words:
            for term, fields in self._postings.items():
                if term.startswith(word):
                    for number, score in self._score(fields):
                        scores[number] += score
                        found[number].add(word)
        ranked = sorted(
            found, key=lambda n: -self._promote(n, scores[n], len(found[n]) / len(words))
        )
        pages = dict.fromkeys(self._documents[n]["location"].partition("#")[0] for n in ranked)
        return list(pages)[:n_pages]

    def _score(self, fields):
        """Yields the number of each document that has a word, and its score of a field."""
        n_with = sum(len(counts) for counts in fields.values())
        rarity = math.log(1 + abs((len(self._documents) - n_with + 0.5) / (n_with + 0.5)))
        for field, counts in fields.items():
            for number, count in counts.items():
                boost = self._boosts[field] * self._documents[number].get("boost", 1)
                yield number, rarity * boost * (K1 + 1) * count / (K1 + count)

    def _promote(self, number, score, share_found):
        is_page = "#" not in self._documents[number]["location"]
        return score * (1 + (is_page + share_found) ** 2)

    def _split(self, text):
        text = html.unescape(_TAG.sub(" ", text)).lower()
        return [word for word in self._separator.split(text) if word]
