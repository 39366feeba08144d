//! Finds the files of a set: unpacked by the user, or in its archive.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Published;
use crate::download::RemoteFile;
use crate::mapping::Mapping;
use crate::unpack::{self, Contents, Member};
use crate::{DatasetError, Split};

/// How an archive is unpacked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unpack<'a> {
    /// Once, into this folder or the usual one.
    Once(Option<&'a Path>),
    /// Into memory, unless an earlier use has unpacked it into this folder or the usual one.
    Memory(Option<&'a Path>),
}

/// Place of the files.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder to read from, or the archive whose files are in memory.
    folder: PathBuf,
    /// The archive that was unpacked into it, unless the user unpacked it or memory has the files.
    archive: Option<PathBuf>,
    /// The files that are in memory, by name.
    held: Vec<(&'static str, Vec<u8>)>,
}

impl Place {
    /// Path of a file, for messages if it is in memory.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The whole file, mapped or taken out of memory.
    pub(super) fn content(&mut self, file: &str) -> Result<Content, DatasetError> {
        let held = self.held.iter_mut().find(|(name, _)| *name == file);
        match held {
            Some((_, bytes)) => Ok(Content::Held(std::mem::take(bytes))),
            None => Mapping::open(&self.path(file)).map(Content::Mapped),
        }
    }

    /// The beginning of a file, at most `most` bytes.
    pub(super) fn beginning(&self, file: &str, most: u64) -> Result<Vec<u8>, DatasetError> {
        if let Some((_, bytes)) = self.held.iter().find(|(name, _)| *name == file) {
            return Ok(bytes.iter().copied().take(most as usize).collect());
        }
        let path = self.path(file);
        let mut bytes = Vec::new();
        let opened = File::open(&path).map_err(DatasetError::io("open", &path))?;
        let read = opened.take(most).read_to_end(&mut bytes);
        read.map_err(DatasetError::io("read", &path))?;
        Ok(bytes)
    }

    /// `error` of a file in the folder, with the advice to unpack again if this crate unpacked it.
    pub(super) fn explain(&self, error: DatasetError) -> DatasetError {
        use DatasetError::{Malformed, Names, Records};
        match (&self.archive, error) {
            (Some(archive), damage @ (Malformed { .. } | Names { .. } | Records { .. })) => {
                DatasetError::Unpacked {
                    damage: Box::new(damage),
                    archive: archive.clone(),
                    folder: self.folder.clone(),
                }
            }
            (_, error) => error,
        }
    }
}

/// The content of a file.
#[derive(Debug)]
pub(super) enum Content {
    Mapped(Mapping),
    Held(Vec<u8>),
}

impl Content {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(mapping) => mapping.bytes(),
            Self::Held(bytes) => bytes,
        }
    }
}

/// Finds the files of `split`; unpacks an archive as told.
pub(super) fn locate(
    published: &Published,
    dir: &Path,
    split: Split,
    how: Unpack<'_>,
) -> Result<Place, DatasetError> {
    if let Some(folder) = folder_of(published, dir, split) {
        return Ok(Place {
            folder,
            archive: None,
            held: Vec::new(),
        });
    }
    if let Some(archive) = archive(published, dir) {
        return in_archive(published, archive, split, how);
    }
    let mut files = vec![published.archive.name.to_owned()];
    let some = folders(published, dir).into_iter();
    if let Some(lacking) = some
        .map(|folder| lacking(published, &folder, split))
        .find(|(has_some, _)| *has_some)
    {
        let (_, names) = lacking;
        files.push(format!("or, from its contents, {}", names.join(", ")));
    }
    Err(DatasetError::Missing {
        dataset: published.name,
        dir: dir.to_owned(),
        also: Some(published.folder),
        files,
    })
}

/// The files of `split` in an archive.
fn in_archive(
    published: &Published,
    archive: PathBuf,
    split: Split,
    how: Unpack<'_>,
) -> Result<Place, DatasetError> {
    let contents = Contents {
        folder: published.folder,
        files: &published.members(),
    };
    let folder = match how {
        Unpack::Once(cache) => Some(unpack::unpacked(&archive, &contents, cache)?),
        Unpack::Memory(cache) => unpack::unpacked_before(&archive, &contents, cache)?,
    };
    if let Some(folder) = folder {
        return Ok(Place {
            folder,
            archive: Some(archive),
            held: Vec::new(),
        });
    }
    let names = published.files_of(split).iter().chain(published.lists);
    let names: Vec<&'static str> = names.copied().collect();
    let of_split = |member: &Member| names.contains(&member.name);
    let files: Vec<Member> = published.members().into_iter().filter(of_split).collect();
    let contents = Contents {
        files: &files,
        ..contents
    };
    let bytes = unpack::into_memory(&archive, &contents)?;
    Ok(Place {
        folder: archive,
        archive: None,
        held: files.iter().map(|file| file.name).zip(bytes).collect(),
    })
}

/// The archive, if neither it nor its files are there.
pub(super) fn missing(published: &Published, dir: &Path) -> Vec<RemoteFile> {
    let unpacked = |split| folder_of(published, dir, split).is_some();
    let there =
        (unpacked(Split::Train) && unpacked(Split::Test)) || archive(published, dir).is_some();
    match there {
        true => Vec::new(),
        false => vec![published.archive],
    }
}

fn folders(published: &Published, dir: &Path) -> [PathBuf; 2] {
    [dir.join(published.folder), dir.to_owned()]
}

fn archive(published: &Published, dir: &Path) -> Option<PathBuf> {
    folders(published, dir)
        .iter()
        .map(|folder| folder.join(published.archive.name))
        .find(|path| path.is_file())
}

/// The folder with all unpacked files of `split`.
fn folder_of(published: &Published, dir: &Path, split: Split) -> Option<PathBuf> {
    folders(published, dir)
        .into_iter()
        .find(|folder| lacking(published, folder, split).1.is_empty())
}

/// Whether `folder` has any of the unpacked files of `split`, and the ones it lacks.
fn lacking(published: &Published, folder: &Path, split: Split) -> (bool, Vec<&'static str>) {
    let files = published.files_of(split).iter().chain(published.lists);
    let (there, lacking): (Vec<&str>, Vec<&str>) =
        files.partition(|file| folder.join(file).is_file());
    (!there.is_empty(), lacking)
}
