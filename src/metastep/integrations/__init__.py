"""Bridges to other libraries. Each module needs the extra of its name; nothing in the core imports them."""
