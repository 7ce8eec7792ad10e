//! The access keys that a door accepts: those of the cluster's records, read again every second.

use hekate_control::s3::S3Secret;
use hekate_gateway_s3::{Grant, Key, Keys, User};
use hekate_proto::Result;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long keys that were read count. A key that was disabled is refused after this time.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// Shortest time between two reads for the sake of ids that are not known.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);
/// How long the keys that were read last count while the records cannot be read.
const OUTAGE_MAX: Duration = Duration::from_secs(300);

type Read = dyn Fn() -> Result<Vec<S3Secret>> + Send + Sync;

/// Keys that are read with `read`.
pub struct RecordedKeys {
    read: Box<Read>,
    /// Locked for a look-up or a replacement only, never over IO.
    known: Mutex<Known>,
    /// Held while the records are read.
    reading: Mutex<()>,
}

#[derive(Default)]
struct Known {
    keys: HashMap<String, Arc<Key>>,
    /// When the records were last asked, and last answered.
    asked: Option<Instant>,
    answered: Option<Instant>,
}

impl RecordedKeys {
    pub fn new(read: impl Fn() -> Result<Vec<S3Secret>> + Send + Sync + 'static) -> Self {
        Self { read: Box::new(read), known: Mutex::default(), reading: Mutex::default() }
    }

    fn locked(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key and the age of what is known. `None`: nothing is known, or it is too old.
    fn find(&self, id: &str) -> Option<(Option<Arc<Key>>, Duration)> {
        let known = self.locked();
        let (answered, asked) = (known.answered?, known.asked?);
        (answered.elapsed() < OUTAGE_MAX).then(|| (known.keys.get(id).cloned(), asked.elapsed()))
    }

    fn read(&self) -> Result<()> {
        let asked = Instant::now();
        match (self.read)() {
            Err(error) => {
                self.locked().asked = Some(asked);
                log::warn!("the access keys cannot be read: {error}");
                Err(error)
            }
            Ok(secrets) => {
                let keys =
                    secrets.into_iter().map(|secret| (secret.key.id.clone(), Arc::new(key_of(secret)))).collect();
                let read = Known { keys, asked: Some(asked), answered: Some(asked) };
                // The keys of before are freed after the lock.
                let _before = std::mem::replace(&mut *self.locked(), read);
                Ok(())
            }
        }
    }
}

impl Keys for RecordedKeys {
    fn known(&self, id: &str) -> Option<Arc<Key>> {
        let (found, age) = self.find(id)?;
        found.filter(|_| age < READ_AGAIN)
    }

    fn lookup(&self, id: &str) -> Result<Option<Arc<Key>>> {
        let Some((found, age)) = self.find(id) else {
            let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
            if self.find(id).is_none() {
                self.read()?;
            }
            return Ok(self.find(id).and_then(|(found, _)| found));
        };
        if found.is_some() && age < READ_AGAIN {
            return Ok(found);
        }
        // Another thread may be reading. What was known before then counts, and an unknown key is refused, so that requests
        // with made up keys do not queue up.
        let Ok(_reading) = self.reading.try_lock() else { return Ok(found) };
        if found.is_none() && age < UNKNOWN_PAUSE {
            // The key may have been made since.
            std::thread::sleep(UNKNOWN_PAUSE - age);
        }
        match self.read() {
            Ok(()) => Ok(self.find(id).and_then(|(found, _)| found)),
            Err(_) if found.is_some() => Ok(found),
            Err(error) => Err(error),
        }
    }
}

fn key_of(secret: S3Secret) -> Key {
    let S3Secret { key, secret } = secret;
    let grant = |write: bool| if write { Grant::Write } else { Grant::Read };
    let buckets = key.buckets.map(|all| all.into_iter().map(|(name, write)| (name, grant(write))).collect());
    Key { secret, user: User { uid: key.uid, gid: key.gid, name: key.user }, read_only: key.read_only, buckets }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_control::s3::S3KeyStatus;
    use hekate_proto::Error;
    use std::sync::mpsc;

    type Recorded = Arc<Mutex<Result<Vec<S3Secret>>>>;

    fn recorded(ids: &[&str]) -> Result<Vec<S3Secret>> {
        let secret = |id: &&str| S3Secret {
            key: S3KeyStatus { id: (*id).into(), ..S3KeyStatus::default() },
            secret: format!("{id}-secret"),
        };
        Ok(ids.iter().map(secret).collect())
    }

    fn away() -> Result<Vec<S3Secret>> {
        Err(Error::Unavailable { what: "server 1".into() })
    }

    fn keys_of(records: &Recorded) -> RecordedKeys {
        let records = records.clone();
        RecordedKeys::new(move || records.lock().unwrap().clone())
    }

    fn set(records: &Recorded, to: Result<Vec<S3Secret>>) {
        *records.lock().unwrap() = to;
    }

    #[test]
    fn a_key_is_accepted_as_soon_as_it_is_made_and_refused_a_second_after_it_was_disabled() {
        let records = Recorded::new(Mutex::new(recorded(&["a"])));
        let keys = keys_of(&records);
        assert_eq!(keys.lookup("a").unwrap().unwrap().secret, "a-secret");
        assert!(keys.lookup("b").unwrap().is_none());
        set(&records, recorded(&["b"]));
        assert!(keys.lookup("b").unwrap().is_some());
        std::thread::sleep(READ_AGAIN);
        assert!(keys.lookup("a").unwrap().is_none());
    }

    #[test]
    fn a_key_is_known_for_a_second_after_it_was_read() {
        let keys = keys_of(&Recorded::new(Mutex::new(recorded(&["a"]))));
        assert!(keys.known("a").is_none(), "nothing was read yet");
        keys.lookup("a").unwrap();
        assert_eq!(keys.known("a").unwrap().secret, "a-secret");
        assert!(keys.known("b").is_none());
        std::thread::sleep(READ_AGAIN);
        assert!(keys.known("a").is_none());
    }

    #[test]
    fn a_known_key_is_found_while_the_records_are_read() {
        let (begun, begins) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (begun, goes_on) = (Mutex::new(begun), Mutex::new(goes_on));
        let keys = Arc::new(RecordedKeys::new(move || {
            begun.lock().unwrap().send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
            recorded(&["a"])
        }));
        go_on.send(()).unwrap();
        keys.lookup("a").unwrap();
        begins.recv().unwrap();
        let reading = keys.clone();
        let reader = std::thread::spawn(move || reading.lookup("b").unwrap().is_none());
        begins.recv().unwrap();
        assert!(keys.known("a").is_some() && keys.known("b").is_none());
        go_on.send(()).unwrap();
        assert!(reader.join().unwrap());
    }

    #[test]
    fn known_keys_count_while_the_records_are_away_and_others_are_no_answer() {
        let records = Recorded::new(Mutex::new(away()));
        let keys = keys_of(&records);
        assert!(keys.lookup("a").is_err(), "nothing was read yet");
        set(&records, recorded(&["a"]));
        assert!(keys.lookup("a").unwrap().is_some());
        set(&records, away());
        std::thread::sleep(READ_AGAIN);
        assert!(keys.lookup("a").unwrap().is_some());
        assert!(keys.lookup("b").is_err());
    }
}
