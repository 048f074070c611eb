"""The plates of the gallery; tools/gallery.py puts them on the page."""
