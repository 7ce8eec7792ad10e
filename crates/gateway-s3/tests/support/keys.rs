// Keys of the tests' doors: `full`/`full-secret`, `reader`/`reader-secret` (read only), `limited`/`limited-secret` (bucket
// `limited` only). `full` alone is known without a look-up, so that doors are asked in both ways.
use hekate_gateway_s3::{Grant, Key, Keys, User};

struct Fixed;

impl Keys for Fixed {
    fn lookup(&self, id: &str) -> hekate_client::proto::Result<Option<Arc<Key>>> {
        let (read_only, buckets) = match id {
            "full" => (false, None),
            "reader" => (true, None),
            "limited" => (false, Some([("limited".to_owned(), Grant::Write)].into())),
            _ => return Ok(None),
        };
        let user = User { uid: 1000, gid: 1000, name: id.into() };
        Ok(Some(Arc::new(Key { secret: format!("{id}-secret"), user, read_only, buckets })))
    }

    fn known(&self, id: &str) -> Option<Arc<Key>> {
        self.lookup(id).ok().flatten().filter(|_| id == "full")
    }
}
