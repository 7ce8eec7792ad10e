"""Reads the vocabulary of crates/proto and writes it in other languages."""
