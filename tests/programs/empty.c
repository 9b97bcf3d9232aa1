/* An empty library: the loader's work for it is the loader's work for any library. */
int nothing;
