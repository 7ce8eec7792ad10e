//! The translators that are installed on this machine: files below the state directory, `plugins/NAME.so` and
//! `python/NAME/translator.py`. The package for Python is part of this program, and is written to
//! `python-library-HASH` there when it is first needed.

use crate::{native, python};
use hekate_graph::catalogue::FindKind;
use hekate_graph::{LayerKind, OptionKind, OptionSpec, Side};
use hekate_proto::{Error, Result};
use include_dir::{Dir, include_dir};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

static PACKAGE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../../python/hekate");

/// Longest name of what is installed.
const NAME_BYTES_MAX: usize = 64;

/// Where translators are installed.
#[derive(Debug, Clone)]
pub struct Home {
    state: PathBuf,
}

/// A library that is installed.
pub struct InstalledPlugin {
    pub name: String,
    pub path: PathBuf,
    /// What it is; the error if it cannot be used.
    pub kind: Result<LayerKind>,
}

/// A translator in Python that is installed.
#[derive(Debug, Clone, Serialize)]
pub struct InstalledPython {
    pub name: String,
    pub directory: PathBuf,
    /// What it says of itself; the error if it cannot be loaded.
    pub summary: String,
}

impl Home {
    pub fn new(state: &Path) -> Self {
        Self { state: state.into() }
    }

    fn plugin_directory(&self) -> PathBuf {
        self.state.join("plugins")
    }

    fn pythons_directory(&self) -> PathBuf {
        self.state.join("python")
    }

    /// Looks for installed translators by name.
    pub fn finder(&self) -> FindKind {
        let home = self.clone();
        Arc::new(move |name: &str| {
            if name == "python" {
                return Ok(Some(python::kind(home.clone())));
            }
            let path = home.plugin_directory().join(format!("{name}.so"));
            if check_name(name).is_err() || !path.exists() {
                return Ok(None);
            }
            check_owner(&path)?;
            native::kind(name, &path).map(Some)
        })
    }

    /// The libraries that are installed.
    ///
    /// # Errors
    /// `Io` if the directory cannot be read.
    pub fn plugins(&self) -> Result<Vec<InstalledPlugin>> {
        let names = names_in(&self.plugin_directory(), |name| name.strip_suffix(".so").map(String::from))?;
        Ok(names
            .into_iter()
            .map(|name| {
                let path = self.plugin_directory().join(format!("{name}.so"));
                let kind = check_owner(&path).and_then(|()| native::kind(&name, &path));
                InstalledPlugin { name, path, kind }
            })
            .collect())
    }

    /// Copies a library to where graphs find it. Returns its kind.
    ///
    /// # Errors
    /// `Invalid` if it is no translator, or of another version; `Io`.
    pub fn install_plugin(&self, file: &Path, name: &str) -> Result<LayerKind> {
        check_name(name)?;
        native::kind(name, file)?;
        make_directory(&self.plugin_directory())?;
        let path = self.plugin_directory().join(format!("{name}.so"));
        let new = self.plugin_directory().join(format!(".{name}.new"));
        // Another file with the old name: programs that have the old one loaded go on with it.
        let copied = std::fs::copy(file, &new).and_then(|_| std::fs::rename(&new, &path));
        copied.map_err(|error| Error::io(format!("install {}", path.display()), error))?;
        check_owner(&path)?;
        native::kind(name, &path)
    }

    /// Removes a library.
    ///
    /// # Errors
    /// `Invalid` if there is none of that name; `Io`.
    pub fn remove_plugin(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let path = self.plugin_directory().join(format!("{name}.so"));
        removed(name, &path, std::fs::remove_file(&path))
    }

    /// The translators in Python that are installed. Each is asked what it is.
    ///
    /// # Errors
    /// `Io` if the directory cannot be read.
    pub fn pythons(&self) -> Result<Vec<InstalledPython>> {
        let names = names_in(&self.pythons_directory(), |name| Some(name.to_string()))?;
        let row = |name: String| {
            let summary =
                self.python_kind(&name).map_or_else(|error| format!("cannot be used: {error}"), |kind| kind.summary);
            InstalledPython { directory: self.pythons_directory().join(&name), name, summary }
        };
        Ok(names.into_iter().map(row).collect())
    }

    /// The directory of an installed translator.
    ///
    /// # Errors
    /// `Invalid` if there is none, or others may write there.
    pub fn python_directory(&self, name: &str) -> Result<PathBuf> {
        if name.is_empty() {
            return Err(Error::invalid("python: name the translator: python:translator=NAME (`hekate python list`)"));
        }
        check_name(name)?;
        let directory = self.pythons_directory().join(name);
        if !directory.join("translator.py").exists() {
            let known = names_in(&self.pythons_directory(), |name| Some(name.to_string()))?;
            let known = if known.is_empty() { "none is".into() } else { format!("there are {}", known.join(", ")) };
            return Err(Error::invalid(format!(
                "no translator {name} in Python is installed on this machine; {known}; `hekate python install` installs \
                 one"
            )));
        }
        check_owner(&directory)?;
        check_owner(&directory.join("translator.py"))?;
        Ok(directory)
    }

    /// What an installed translator in Python is, with its options beside those of all.
    ///
    /// # Errors
    /// `Invalid` if it is not installed, or with what Python says if it cannot be loaded.
    pub fn python_kind(&self, name: &str) -> Result<LayerKind> {
        let directory = self.python_directory(name)?;
        self.describe(name, &directory)
    }

    /// Checks the options of a layer `python` that are its class's own.
    ///
    /// # Errors
    /// `Invalid` with the options that there are, or the values that one takes.
    pub fn check_python(&self, given: &BTreeMap<String, String>) -> Result<()> {
        const CHECK: &str = "import json, sys\nfrom hekate.translator import load\n\
            try: load(sys.argv[1]).parse_options(json.loads(sys.argv[2]))\n\
            except Exception as error: sys.exit(str(error))";
        let name = given.get("translator").map_or("", String::as_str);
        let directory = self.python_directory(name)?;
        let of_class = serde_json::to_string(&python::of_class(given)).unwrap_or_default();
        let mut command = python::python(&self.python_library()?);
        command.args(["-c", CHECK]).arg(directory).arg(of_class).stdin(Stdio::null());
        let asked = command.output().map_err(|error| Error::io("start python3", error))?;
        if asked.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&asked.stderr);
        let own: Vec<String> = python::own_options().into_iter().map(|option| option.name).collect();
        Err(Error::invalid(format!("translator {name} in Python: {}; all have {}", said.trim(), own.join(", "))))
    }

    fn describe(&self, name: &str, directory: &Path) -> Result<LayerKind> {
        let mut command = python::python(&self.python_library()?);
        command.args(["-m", "hekate.worker", "--describe"]).arg(directory).stdin(Stdio::null());
        let asked = command.output().map_err(|error| Error::io("start python3", error))?;
        let found: Value = serde_json::from_slice(&asked.stdout).map_err(|_| {
            let said = String::from_utf8_lossy(&asked.stderr);
            Error::invalid(format!("translator {name} in Python cannot be loaded: {said}"))
        })?;
        if let Some(why) = found.get("failed").and_then(Value::as_str) {
            return Err(Error::invalid(format!("translator {name} in Python cannot be loaded: {why}")));
        }
        let word = |value: &Value, name: &str| value.get(name).map(plain).unwrap_or_default();
        let options = found.get("options").and_then(Value::as_object).cloned().unwrap_or_default();
        let option = |(name, of): (&String, &Value)| {
            OptionSpec::new(
                name,
                OptionKind::Text,
                &word(of, "default"),
                &format!("({}) {}", word(of, "type"), word(of, "help")),
            )
        };
        let home = self.clone();
        let all = python::kind(home);
        Ok(LayerKind {
            name: format!("python:{name}"),
            summary: word(&found, "summary").lines().next().unwrap_or_default().into(),
            help: word(&found, "summary"),
            side: Side::Client,
            options: options.iter().map(option).chain(all.options.clone()).collect(),
            ..all
        })
    }

    /// Copies a translator's directory to where graphs find it, in place of another one of that name. Returns its kind.
    ///
    /// # Errors
    /// `Invalid` if it cannot be loaded; `Io`.
    pub fn install_python(&self, directory: &Path, name: &str) -> Result<LayerKind> {
        check_name(name)?;
        let directory = std::path::absolute(directory).map_err(|error| Error::io("find the directory", error))?;
        if !directory.join("translator.py").exists() {
            return Err(Error::invalid(format!(
                "{} has no translator.py; `hekate python new` makes one",
                directory.display()
            )));
        }
        self.describe(name, &directory)?;
        make_directory(&self.pythons_directory())?;
        let (place, new) = (self.pythons_directory().join(name), self.pythons_directory().join(format!(".{name}.new")));
        let copy = || {
            let old = self.pythons_directory().join(format!(".{name}.old"));
            let _ = std::fs::remove_dir_all(&new);
            let _ = std::fs::remove_dir_all(&old);
            copy_files(&directory, &new)?;
            match std::fs::rename(&place, &old) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => std::fs::rename(&new, &place)?,
            }
            let _ = std::fs::remove_dir_all(&old);
            Ok(())
        };
        copy().map_err(|error| Error::io(format!("install {}", place.display()), error))?;
        self.python_kind(name)
    }

    /// Removes a translator.
    ///
    /// # Errors
    /// `Invalid` if there is none of that name; `Io`.
    pub fn remove_python(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let directory = self.pythons_directory().join(name);
        removed(name, &directory, std::fs::remove_dir_all(&directory))
    }

    /// The directory with the package `hekate` of this program, which is written if it is not there.
    ///
    /// # Errors
    /// `Io` if it cannot be written.
    pub fn python_library(&self) -> Result<PathBuf> {
        let library = self.state.join(format!("python-library-{:016x}", package_hash()));
        if library.join("hekate/worker.py").exists() {
            return Ok(library);
        }
        let new = self.state.join(format!(".python-library-{}", std::process::id()));
        let write = || {
            let _ = std::fs::remove_dir_all(&new);
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(new.join("hekate"))?;
            PACKAGE.extract(new.join("hekate"))?;
            match std::fs::rename(&new, &library) {
                // Another process was faster.
                Err(_) if library.exists() => std::fs::remove_dir_all(&new),
                outcome => outcome,
            }
        };
        write().map_err(|error| Error::io(format!("write the package for Python to {}", library.display()), error))?;
        Ok(library)
    }

    /// Makes a directory with a translator to start from.
    ///
    /// # Errors
    /// `Invalid` if it exists, or its last part is no name; `Io`.
    pub fn new_python(&self, directory: &Path) -> Result<()> {
        let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        check_name(&name)?;
        if directory.exists() {
            return Err(Error::invalid(format!("{} exists already; name another directory", directory.display())));
        }
        let class: String = name.split(['-', '_', '.']).map(capitalised).collect();
        let template = PACKAGE.get_dir("template").ok_or_else(|| Error::bug("the package has no template"))?;
        let write = || {
            std::fs::create_dir_all(directory)?;
            for file in template.files() {
                let text = file.contents_utf8().unwrap_or_default();
                let text = text.replace("{{name}}", &name).replace("{{Class}}", &class);
                std::fs::write(directory.join(file.path().file_name().unwrap_or_default()), text)?;
            }
            Ok(())
        };
        write().map_err(|error: std::io::Error| Error::io(format!("make {}", directory.display()), error))
    }

    /// A command that runs Python with the package.
    ///
    /// # Errors
    /// `Io` if the package cannot be written.
    pub fn python_command(&self) -> Result<std::process::Command> {
        Ok(python::python(&self.python_library()?))
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}

/// A hash of the package's files (FNV-1a), so that another version of this program writes its own.
fn package_hash() -> u64 {
    fn add(hash: u64, bytes: &[u8]) -> u64 {
        bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }
    fn of(dir: &Dir<'_>, hash: u64) -> u64 {
        let hash = dir
            .files()
            .fold(hash, |hash, file| add(add(hash, file.path().to_string_lossy().as_bytes()), file.contents()));
        dir.dirs().fold(hash, |hash, dir| of(dir, hash))
    }
    of(&PACKAGE, 0xcbf2_9ce4_8422_2325)
}

fn check_name(name: &str) -> Result<()> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_right) {
        return Err(Error::invalid(format!(
            "{name:?} is no name of a translator: letters, digits, - and _, at most {NAME_BYTES_MAX}"
        )));
    }
    Ok(())
}

/// Code is used only if root or this user owns it, and nobody else may write it.
fn check_owner(path: &Path) -> Result<()> {
    let shown = path.display();
    let found = std::fs::metadata(path).map_err(|error| Error::io(format!("look at {shown}"), error))?;
    let own = rustix::process::geteuid().as_raw();
    if (found.uid() != 0 && found.uid() != own) || found.mode() & 0o022 != 0 {
        return Err(Error::Denied {
            what: format!("{shown} is not used: others than root and its user may write it; chmod go-w it"),
        });
    }
    Ok(())
}

fn make_directory(path: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| Error::io(format!("make {}", path.display()), error))
}

fn names_in(directory: &Path, name_of: impl Fn(&str) -> Option<String>) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| Error::io(format!("read {}", directory.display()), error))?,
    };
    let names = entries.filter_map(|entry| name_of(entry.ok()?.file_name().to_str()?));
    let mut names: Vec<String> = names.filter(|name| check_name(name).is_ok()).collect();
    names.sort();
    Ok(names)
}

fn removed(name: &str, path: &Path, outcome: std::io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::invalid(format!("no translator {name} is installed on this machine")))
        }
        outcome => outcome.map_err(|error| Error::io(format!("remove {}", path.display()), error)),
    }
}

/// Copies the files of a directory, and of those in it but caches; nobody else may write the copies.
fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o755).create(to)?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (kind, name) = (entry.file_type()?, entry.file_name());
        let is_cache = name.to_string_lossy().starts_with('.') || name == "__pycache__";
        if kind.is_dir() && !is_cache {
            copy_files(&entry.path(), &to.join(&name))?;
        } else if kind.is_file() && !is_cache {
            std::fs::write(to.join(&name), std::fs::read(entry.path())?)?;
            std::fs::set_permissions(to.join(&name), std::fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}
