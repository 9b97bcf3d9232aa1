//! A small sorted map: pairs in one block of memory, in the order of their keys.
//!
//! For collections of up to some hundreds: pools, graphs, shares, streams with frees. The standard library's tree
//! takes some 4 KB of code for each pair of types; this takes a tenth. Lookups are as fast. An insertion moves the
//! pairs behind it (100 ns for 1,000 pairs of 32 bytes). Not for collections that may have many thousands: chunks of
//! pools, mappings, deferred frees.

/// The map.
#[derive(Debug, Clone)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> SortedMap<K, V> {
    /// An empty map; allocates nothing.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Number of pairs.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the map is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All pairs, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// All keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// As [`Self::values`], mutable.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Keeps the pairs for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The index of a key, or in `Err` the index at which it would be inserted.
    fn find_place(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(here, _)| here.cmp(key))
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let place = self.find_place(key).ok()?;
        self.0.get(place).map(|(_, value)| value)
    }

    /// As [`Self::get`], mutable.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let place = self.find_place(key).ok()?;
        self.0.get_mut(place).map(|(_, value)| value)
    }

    /// Sets the value of a key; returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find_place(&key) {
            Ok(place) => self.0.get_mut(place).map(|(_, here)| core::mem::replace(here, value)),
            Err(place) => {
                // An insertion index is at most the length.
                self.0.insert(place, (key, value));
                None
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        // An index that was found is below the length.
        self.find_place(key).ok().map(|place| self.0.remove(place).1)
    }

    /// The value of a key; inserts the default if there is none.
    pub fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let place = match self.find_place(&key) {
            Ok(place) => place,
            Err(place) => {
                self.0.insert(place, (key, V::default()));
                place
            }
        };
        // The pair exists now.
        &mut self.0[place].1
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_is_the_same_as_a_search_tree_whatever_is_done_to_it() {
        let (mut map, mut tree, mut state) = (SortedMap::new(), BTreeMap::new(), 88_172_645_463_325_252_u64);
        for step in 0..20_000_u64 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let key = state % 97;
            match state >> 32 & 7 {
                0 | 1 => assert_eq!(map.insert(key, step), tree.insert(key, step)),
                2 | 3 => assert_eq!(map.remove(&key), tree.remove(&key)),
                4 => *map.or_default(key) += step,
                5 => assert_eq!(map.get(&key), tree.get(&key)),
                6 => assert_eq!(map.get_mut(&key), tree.get_mut(&key)),
                _ if state >> 40 & 15 == 0 => {
                    map.retain(|key, value| (*key ^ *value) & 1 == 0);
                    tree.retain(|key, value| (*key ^ *value) & 1 == 0);
                }
                _ => map.values_mut().for_each(|value| *value ^= 1),
            }
            match state >> 32 & 7 {
                4 => *tree.entry(key).or_default() += step,
                7 if state >> 40 & 15 != 0 => tree.values_mut().for_each(|value| *value ^= 1),
                _ => {}
            }
            assert_eq!((map.len(), map.is_empty()), (tree.len(), tree.is_empty()));
        }
        assert!(map.iter().eq(tree.iter()) && map.keys().eq(tree.keys()) && map.values().eq(tree.values()));
        assert!(map.into_iter().eq(tree));
    }
}
