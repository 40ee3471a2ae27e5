"""One module or folder per backend; each is imported only when its device is opened."""
