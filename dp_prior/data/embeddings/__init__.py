"""Embeddings in folders, as clip-retrieval writes them and embedding-reader reads them: bounded memory, any size."""
