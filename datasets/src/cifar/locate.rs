//! Finds the files of a set: unpacked by the user, or in its archive.

use std::path::{Path, PathBuf};

use super::Published;
use crate::download::RemoteFile;
use crate::unpack::{self, Contents};
use crate::{DatasetError, Split};

/// Place of the files.
#[derive(Debug)]
pub(super) struct Place {
    /// The folder to read from.
    pub(super) folder: PathBuf,
    /// The archive that was unpacked into it, unless the user unpacked it.
    archive: Option<PathBuf>,
}

impl Place {
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

/// Finds the files of `split`; the first use unpacks an archive into `cache`.
pub(super) fn locate(
    published: &Published,
    dir: &Path,
    split: Split,
    cache: Option<&Path>,
) -> Result<Place, DatasetError> {
    if let Some(folder) = folder_of(published, dir, split) {
        return Ok(Place {
            folder,
            archive: None,
        });
    }
    if let Some(archive) = archive(published, dir) {
        let contents = Contents {
            folder: published.folder,
            files: &published.members(),
        };
        let folder = unpack::unpacked(&archive, &contents, cache)?;
        return Ok(Place {
            folder,
            archive: Some(archive),
        });
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
