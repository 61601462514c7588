//! Reading, filling and emptying a scratch folder through a held directory handle, never
//! following a link.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use belljar_protocol::scratch::{Digest, ScratchChange, ScratchEntry, ScratchManifest};
use bytes::Bytes;
use cap_fs_ext::{DirExt, FollowSymlinks, OpenOptionsFollowExt};
use cap_std::fs::{Dir, Metadata, MetadataExt, OpenOptions};

use super::names;
use crate::error::SandboxError;
use crate::limits::Limits;

/// File times are as coarse as the kernel's timer; what changed this shortly before a scan may
/// change again unseen.
const COARSE: Duration = Duration::from_millis(100);

/// What tells one state of a file from another without reading it. The change time is the
/// kernel's own, a guest cannot set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    fn is_older_than(&self, at: SystemTime) -> bool {
        let since = |(secs, nanos): (i64, i64)| {
            let secs = Duration::from_secs(u64::try_from(secs).unwrap_or(u64::MAX / 4));
            SystemTime::UNIX_EPOCH
                .checked_add(secs + Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
        };
        since(self.changed).is_some_and(|changed| changed < at)
    }
}

/// Contents known from an earlier look, by path.
#[derive(Debug, Default)]
pub(crate) struct Known {
    files: HashMap<String, (Stamp, Digest)>,
    /// When that look began, less the coarseness of file times.
    settled: Option<SystemTime>,
}

impl Known {
    fn begin(&mut self) {
        self.settled = SystemTime::now().checked_sub(COARSE);
    }

    fn digest(&self, path: &str, stamp: &Stamp) -> Option<&Digest> {
        let (seen, digest) = self.files.get(path)?;
        (seen == stamp && self.settled.is_some_and(|at| stamp.is_older_than(at))).then_some(digest)
    }
}

/// What a scan found.
pub(crate) struct Found {
    pub(crate) change: ScratchChange,
    pub(crate) blobs: Vec<(Digest, Bytes)>,
    pub(crate) known: Known,
}

/// Compares a folder with the manifest it was made from.
pub(crate) fn scan(
    root: &Dir,
    from: &ScratchManifest,
    known: &Known,
    limits: &Limits,
) -> Result<Found, SandboxError> {
    let mut scan = Scan {
        from,
        known,
        limits,
        bytes: 0,
        seen: BTreeMap::new(),
        found: Found {
            change: ScratchChange::default(),
            blobs: Vec::new(),
            known: Known::default(),
        },
    };
    scan.found.known.begin();
    scan.folder(root, "", 1)?;
    let Scan {
        seen, mut found, ..
    } = scan;
    found.change.removed = from
        .entries
        .keys()
        .filter(|path| !seen.contains_key(*path))
        .cloned()
        .collect();
    found.change.put = seen
        .into_iter()
        .filter(|(path, entry)| from.entries.get(path) != Some(entry))
        .collect();
    Ok(found)
}

struct Scan<'a> {
    from: &'a ScratchManifest,
    known: &'a Known,
    limits: &'a Limits,
    bytes: u64,
    seen: BTreeMap<String, ScratchEntry>,
    found: Found,
}

impl Scan<'_> {
    fn folder(&mut self, folder: &Dir, prefix: &str, depth: usize) -> Result<(), SandboxError> {
        for entry in folder.entries().map_err(reading)? {
            let entry = entry.map_err(reading)?;
            let name = entry.file_name();
            let shown = format!(
                "{prefix}{}",
                crate::journal::cleaned(&name.to_string_lossy())
            );
            let bad = |reason: &str| SandboxError::ScratchEntry {
                path: shown.clone(),
                reason: reason.into(),
            };
            let name = name
                .to_str()
                .ok_or_else(|| bad("has a name that is not UTF-8"))?;
            names::check_part(name).map_err(|reason| bad(&reason))?;
            if depth > names::PARTS {
                return Err(bad(&format!("lies more than {} parts deep", names::PARTS)));
            }
            if self.seen.len() >= self.limits.scratch_entries {
                return Err(quota(
                    "entries",
                    self.seen.len() as u64 + 1,
                    self.limits.scratch_entries as u64,
                ));
            }
            let path = format!("{prefix}{name}");
            let meta = folder.symlink_metadata(name).map_err(reading)?;
            if meta.is_dir() {
                self.seen.insert(path.clone(), ScratchEntry::Dir {});
                let below = folder.open_dir_nofollow(name).map_err(reading)?;
                self.folder(&below, &format!("{path}/"), depth + 1)?;
            } else if meta.is_file() {
                if meta.nlink() != 1 {
                    return Err(bad("has more than one name"));
                }
                let (digest, size) = self.file(folder, name, &path, &meta)?;
                self.seen.insert(
                    path,
                    ScratchEntry::File {
                        sha256: digest,
                        size,
                    },
                );
            } else {
                return Err(bad("is neither a file nor a folder"));
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        folder: &Dir,
        name: &str,
        path: &str,
        meta: &Metadata,
    ) -> Result<(Digest, u64), SandboxError> {
        let size = meta.len();
        if size > self.limits.file_bytes {
            return Err(quota(path, size, self.limits.file_bytes));
        }
        self.bytes += size;
        if self.bytes > self.limits.scratch_bytes {
            return Err(quota("bytes", self.bytes, self.limits.scratch_bytes));
        }
        let stamp = Stamp::of(meta);
        let digest = match self.known.digest(path, &stamp) {
            Some(digest) => digest.clone(),
            None => {
                let bytes =
                    read_file(folder, name, self.limits.file_bytes).map_err(
                        |error| match error {
                            ReadError::TooLarge => {
                                quota(path, self.limits.file_bytes + 1, self.limits.file_bytes)
                            }
                            ReadError::NotAFile => SandboxError::ScratchEntry {
                                path: path.into(),
                                reason: "is not a regular file".into(),
                            },
                            ReadError::Io(error) => reading(error),
                        },
                    )?;
                let digest = Digest::of(&bytes);
                let same = matches!(self.from.entries.get(path), Some(ScratchEntry::File { sha256, .. }) if *sha256 == digest);
                if !same {
                    self.found.blobs.push((digest.clone(), bytes));
                }
                digest
            }
        };
        self.found
            .known
            .files
            .insert(path.to_owned(), (stamp, digest.clone()));
        Ok((digest, size))
    }
}

fn quota(what: &str, used: u64, limit: u64) -> SandboxError {
    SandboxError::ScratchQuota {
        what: what.into(),
        used,
        limit,
    }
}

fn reading(error: io::Error) -> SandboxError {
    SandboxError::host("reading a scratch folder", error)
}

/// Why a file was not read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// Not a regular file with one name.
    NotAFile,
    /// Longer than the cap.
    TooLarge,
    /// The file system's error.
    Io(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(from: io::Error) -> Self {
        Self::Io(from)
    }
}

/// Reads a regular file of one name, at most `cap` bytes, without following a link.
pub(crate) fn read_file(folder: &Dir, name: &str, cap: u64) -> Result<Bytes, ReadError> {
    // Asked before opening as well: opening a pipe would wait for its other end.
    if !folder.symlink_metadata(name)?.is_file() {
        return Err(ReadError::NotAFile);
    }
    let file = folder.open_with(
        name,
        OpenOptions::new().read(true).follow(FollowSymlinks::No),
    )?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(ReadError::NotAFile);
    }
    if meta.len() > cap {
        return Err(ReadError::TooLarge);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.take(cap + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > cap {
        return Err(ReadError::TooLarge);
    }
    Ok(bytes.into())
}

/// Opens the folder a path's last part lies in, without following a link.
pub(crate) fn parent<'a>(root: &Dir, parts: &[&'a str]) -> io::Result<(Dir, &'a str)> {
    let (last, above) = parts.split_last().ok_or(io::ErrorKind::InvalidInput)?;
    let mut folder = root.try_clone()?;
    for part in above {
        folder = folder.open_dir_nofollow(part)?;
    }
    Ok((folder, last))
}

/// Fills an empty folder with what a manifest names; `contents` has every file's bytes.
pub(crate) fn fill(
    root: &Dir,
    manifest: &ScratchManifest,
    contents: &HashMap<Digest, Bytes>,
) -> io::Result<Known> {
    let mut known = Known::default();
    known.begin();
    // Sorted by path, so a folder comes before what lies in it.
    for (path, entry) in &manifest.entries {
        if names::parts(path).is_err() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the manifest holds the path {path:?}"),
            ));
        }
        match entry {
            ScratchEntry::Dir {} => root.create_dir_all(path)?,
            ScratchEntry::File { sha256, .. } => {
                let bytes = contents.get(sha256).ok_or(io::ErrorKind::NotFound)?;
                if let Some(above) = Path::new(path)
                    .parent()
                    .filter(|above| *above != Path::new(""))
                {
                    root.create_dir_all(above)?;
                }
                let mut file =
                    root.open_with(path, OpenOptions::new().write(true).create_new(true))?;
                file.write_all(bytes)?;
                known
                    .files
                    .insert(path.clone(), (Stamp::of(&file.metadata()?), sha256.clone()));
            }
        }
    }
    Ok(known)
}

/// Removes everything in a folder, however deep a guest has nested it: what lies deeper is
/// first moved up, so neither the stack nor the number of open files grows with the depth.
pub(crate) fn clear(root: &Dir) -> io::Result<()> {
    let mut next = 0u64;
    // Names a guest gave are moved away from, so that the numbers below are free.
    loop {
        let mut folders = Vec::new();
        for name in entries(root)? {
            if root.symlink_metadata(&name)?.is_dir() {
                folders.push(name);
            } else {
                root.remove_file(&name)?;
            }
        }
        if folders.is_empty() {
            return Ok(());
        }
        for name in folders {
            let folder = root.open_dir_nofollow(&name)?;
            for inner in entries(&folder)? {
                if folder.symlink_metadata(&inner)?.is_dir() {
                    folder.rename(&inner, root, free(root, &mut next)?)?;
                } else {
                    folder.remove_file(&inner)?;
                }
            }
            root.remove_dir(&name)?;
        }
    }
}

/// The names in a folder, read to the end before any of them changes.
fn entries(folder: &Dir) -> io::Result<Vec<std::ffi::OsString>> {
    folder
        .entries()?
        .map(|entry| Ok(entry?.file_name()))
        .collect()
}

/// A name that is not taken in `root`.
fn free(root: &Dir, next: &mut u64) -> io::Result<String> {
    loop {
        *next += 1;
        let name = format!(".going-{next}");
        match root.symlink_metadata(&name) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(name),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Dir) {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open_ambient_dir(temp.path(), cap_std::ambient_authority()).unwrap();
        (temp, dir)
    }

    fn code(result: Result<Found, SandboxError>) -> &'static str {
        result.err().unwrap().code()
    }

    #[test]
    fn a_scan_gives_what_changed() {
        let (_temp, dir) = folder();
        let limits = Limits::default();
        dir.create_dir("d").unwrap();
        dir.write("d/a", "one").unwrap();
        dir.write("b", "two").unwrap();
        let first = scan(
            &dir,
            &ScratchManifest::default(),
            &Known::default(),
            &limits,
        )
        .unwrap();
        assert_eq!(
            first.change.put.keys().collect::<Vec<_>>(),
            ["b", "d", "d/a"]
        );
        assert_eq!(first.blobs.len(), 2);

        let manifest = ScratchManifest::default().after(&first.change);
        let same = scan(&dir, &manifest, &first.known, &limits).unwrap();
        assert!(same.change.is_empty() && same.blobs.is_empty());

        // The same length at the same time: only a second hash tells.
        dir.write("b", "TWO").unwrap();
        dir.remove_file("d/a").unwrap();
        let second = scan(&dir, &manifest, &first.known, &limits).unwrap();
        assert_eq!(second.change.put.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(second.change.removed, ["d/a"]);

        // And back to what the manifest says.
        clear(&dir).unwrap();
        assert_eq!(dir.entries().unwrap().count(), 0);
        let contents = first.blobs.into_iter().collect();
        let known = fill(&dir, &manifest, &contents).unwrap();
        assert!(
            scan(&dir, &manifest, &known, &limits)
                .unwrap()
                .change
                .is_empty()
        );
    }

    #[test]
    fn old_files_are_not_read_again() {
        let (_temp, dir) = folder();
        dir.write("a", "one").unwrap();
        let limits = Limits::default();
        let first = scan(
            &dir,
            &ScratchManifest::default(),
            &Known::default(),
            &limits,
        )
        .unwrap();
        let manifest = ScratchManifest::default().after(&first.change);
        std::thread::sleep(2 * COARSE);
        let mut known = scan(&dir, &manifest, &first.known, &limits).unwrap().known;
        // A digest that no reading would give shows that nothing was read.
        let false_digest = Digest::of(b"false");
        known.files.get_mut("a").unwrap().1 = false_digest.clone();
        let third = scan(&dir, &manifest, &known, &limits).unwrap();
        assert_eq!(
            third.change.put["a"],
            ScratchEntry::File {
                sha256: false_digest,
                size: 3
            }
        );
    }

    #[test]
    fn links_pipes_and_odd_names_are_refused() {
        let none = ScratchManifest::default();
        let limits = Limits::default();
        let (temp, dir) = folder();
        std::os::unix::fs::symlink("/etc/passwd", temp.path().join("link")).unwrap();
        assert_eq!(
            code(scan(&dir, &none, &Known::default(), &limits)),
            "scratch_entry"
        );
        assert!(matches!(
            read_file(&dir, "link", 100),
            Err(ReadError::NotAFile)
        ));
        clear(&dir).unwrap();
        dir.write("a", "x").unwrap();
        dir.hard_link("a", &dir, "b").unwrap();
        assert_eq!(
            code(scan(&dir, &none, &Known::default(), &limits)),
            "scratch_entry"
        );
        assert!(matches!(
            read_file(&dir, "b", 100),
            Err(ReadError::NotAFile)
        ));
        clear(&dir).unwrap();
        dir.write("new\nline", "x").unwrap();
        assert_eq!(
            code(scan(&dir, &none, &Known::default(), &limits)),
            "scratch_entry"
        );
    }

    #[test]
    fn quotas_are_counted_before_reading() {
        let none = ScratchManifest::default();
        let (_temp, dir) = folder();
        let small = Limits {
            scratch_entries: 2,
            scratch_bytes: 10,
            file_bytes: 8,
            ..Limits::default()
        };
        let file = dir.create("sparse").unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(
            code(scan(&dir, &none, &Known::default(), &small)),
            "scratch_quota"
        );
        file.set_len(6).unwrap();
        assert!(scan(&dir, &none, &Known::default(), &small).is_ok());
        dir.write("b", "12345").unwrap();
        assert_eq!(
            code(scan(&dir, &none, &Known::default(), &small)),
            "scratch_quota"
        );
        dir.write("b", "").unwrap();
        dir.write("c", "").unwrap();
        assert_eq!(
            code(scan(&dir, &none, &Known::default(), &small)),
            "scratch_quota"
        );
    }

    #[test]
    fn any_depth_is_cleared() {
        let (_temp, dir) = folder();
        let mut at = dir.try_clone().unwrap();
        for _ in 0..3_000 {
            at.create_dir("d").unwrap();
            at = at.open_dir("d").unwrap();
        }
        at.write("f", "x").unwrap();
        drop(at);
        let deep = scan(
            &dir,
            &ScratchManifest::default(),
            &Known::default(),
            &Limits::default(),
        );
        assert_eq!(code(deep), "scratch_entry");
        clear(&dir).unwrap();
        assert_eq!(dir.entries().unwrap().count(), 0);
    }
}
