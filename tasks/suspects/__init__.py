"""The steps that find what may be wrong with the data: labels, contradictions, outliers."""
