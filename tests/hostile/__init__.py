"""Hostile inputs to the whole public interface: drawn by number, asked, and judged; `make hostile` asks 20,000."""
