"""Converters from ONNX operators to Relax, one family a file; see ``registry``."""
