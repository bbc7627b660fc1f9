"""Differences that are intended, with their reasons."""

import re


class Known:
    def __init__(self, stack, pattern, reason, documents=""):
        self.stack, self.pattern, self.reason, self.documents = stack, pattern, reason, documents

    def explains(self, judgement, difference):
        return self.stack == judgement.stack and re.search(self.documents, judgement.document) and re.search(self.pattern, difference)


KNOWN = [
]
