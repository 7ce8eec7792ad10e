//! A map that forgets what was not inserted lately.

use hekate_threads::HashMap;
use std::hash::Hash;

/// Entries of a map, in two generations of half as many.
const REMEMBERED_MAX: usize = 262_144;

/// A map of bounded size: when the newer generation is full, it becomes the older one, and that one is forgotten.
#[derive(Debug)]
pub(super) struct Generations<K, V> {
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
}

impl<K, V> Default for Generations<K, V> {
    fn default() -> Self {
        Self { newer: HashMap::default(), older: HashMap::default() }
    }
}

impl<K: Eq + Hash, V> Generations<K, V> {
    pub(super) fn len(&self) -> usize {
        self.newer.len() + self.older.len()
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.newer.get(key).or_else(|| self.older.get(key))
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.older.remove(&key);
        if self.newer.len() >= REMEMBERED_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &K) {
        self.newer.remove(key);
        self.older.remove(key);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        self.newer.retain(|key, value| keep(key, value));
        self.older.retain(|key, value| keep(key, value));
    }

    pub(super) fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
    }
}
