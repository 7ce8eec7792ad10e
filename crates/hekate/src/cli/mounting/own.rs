//! What a server mounts itself: `VOLUME:DIR` or `VOLUME:DIR:OPTIONS`.

use super::Options;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Clone)]
pub struct OwnMount {
    /// The text as written.
    pub text: String,
    pub volume: String,
    pub directory: PathBuf,
    pub options: Options,
}

impl FromStr for OwnMount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, ':');
        let (volume, directory) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if volume.is_empty() || volume.contains('/') || !directory.starts_with('/') {
            let form = "say VOLUME:DIR or VOLUME:DIR:OPTIONS, with a whole path, as in photos:/mnt/photos:cache=1";
            return Err(format!("{text:?}: {form}"));
        }
        let options = Options::from_str(parts.next().unwrap_or_default())?.settled();
        let foreign = [
            ("remount", options.remount),
            ("server", options.server.is_some()),
            ("state", options.state.is_some()),
            ("wait", options.wait.is_some()),
        ];
        if let Some((name, _)) = foreign.iter().find(|(_, given)| *given) {
            return Err(format!(
                "{text:?}: {name} is for `hekate mount`; a server mounts its own volumes once it serves"
            ));
        }
        Ok(Self { text: text.into(), volume: volume.into(), directory: directory.into(), options })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_volume_a_directory_and_options() {
        let plain = OwnMount::from_str("photos:/mnt/photos").unwrap();
        assert_eq!((plain.volume.as_str(), plain.directory), ("photos", "/mnt/photos".into()));
        assert!(plain.options.cache.is_none());
        let cached = OwnMount::from_str("photos:/mnt/photos:cache=1,ro").unwrap();
        assert_eq!(cached.options.cache, Some(Duration::from_secs(1)));
        assert_eq!(cached.options.change.read_only, Some(true));
    }

    #[test]
    fn anything_else_is_refused_with_the_form() {
        for text in ["", "photos", "photos:", ":/mnt", "a/b:/mnt", "127.0.0.1:7100/photos"] {
            let why = OwnMount::from_str(text).unwrap_err();
            assert!(why.contains("VOLUME:DIR") || why.contains("option"), "{text}: {why}");
        }
        assert!(OwnMount::from_str("v:/mnt:remount").unwrap_err().contains("hekate mount"));
        assert!(OwnMount::from_str("v:/mnt:nonsense=1").is_err());
    }
}
