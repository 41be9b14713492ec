"""Quantisation types."""

# name -> llama.cpp's number; only types that need no importance matrix
TYPES = {
    "F16": 1, "BF16": 32, "Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q5_K_S": 16, "Q5_1": 9, "Q5_0": 8,
    "Q4_K_M": 15, "Q4_K_S": 14, "Q4_1": 3, "Q4_0": 2, "IQ4_NL": 25, "IQ4_XS": 30, "Q3_K_L": 13,
    "Q3_K_M": 12, "Q3_K_S": 11, "Q2_K": 10,
}  # fmt: skip
