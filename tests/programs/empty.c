/* A library with nothing in it: what the loader does for it, it does for any. */
int nothing;
