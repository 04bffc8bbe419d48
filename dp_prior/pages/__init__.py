"""Pages: what a run left, as one HTML file that opens in a browser, without network."""
