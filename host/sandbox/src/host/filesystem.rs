//! `wasi:filesystem` as guests get it: wasmtime's own, with three differences.
//!
//! * The folder behind the preopen is made ready when a guest first asks for it, so that a
//!   decision that never does costs no IO.
//! * Before a call that may change anything the scratch is told.
//! * Links of both kinds are refused: wasmtime refuses absolute targets only.
//!
//! A full table of handles is an error to the guest here rather than a trap.

use wasmtime::component::{HasData, Linker, Resource, ResourceTableError};
use wasmtime_wasi::filesystem::{Descriptor, Dir, WasiFilesystemCtxView};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    self, Advice, DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry,
    DirectoryEntryStream, ErrorCode, Filesize, HostDescriptor, HostDirectoryEntryStream,
    MetadataHashValue, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, FsError, FsResult};
use wasmtime_wasi::{FsPerms, OpenMode};

use super::Host;
use crate::scratch::ScratchUse;

/// The version of `wasi:filesystem` that wasmtime 48 links; components that ask for an earlier
/// 0.2 get this one.
const PREOPENS: &str = "wasi:filesystem/preopens@0.2.12";

pub(super) fn add_to_linker(linker: &mut Linker<Host>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    types::add_to_linker::<Host, Guarded>(linker, |host| GuardedView {
        wasi: WasiFilesystemCtxView {
            ctx: host.wasi.filesystem(),
            table: &mut host.table,
        },
        scratch: &mut host.scratch,
    })?;
    linker
        .instance(PREOPENS)?
        .func_wrap_async("get-directories", |mut store, (): ()| {
            Box::new(async move {
                let host: &mut Host = store.data_mut();
                let files = host.scratch.files().await?.try_clone()?.into_std_file();
                let dir = Dir::new(
                    files,
                    FsPerms::ReadWrite,
                    OpenMode::READ | OpenMode::WRITE,
                    true,
                );
                let scratch = host.table.push(Descriptor::Dir(dir))?;
                Ok((vec![(scratch, "/scratch".to_owned())],))
            })
        })?;
    linker.allow_shadowing(false);
    Ok(())
}

struct Guarded;

impl HasData for Guarded {
    type Data<'a> = GuardedView<'a>;
}

struct GuardedView<'a> {
    wasi: WasiFilesystemCtxView<'a>,
    scratch: &'a mut ScratchUse,
}

impl GuardedView<'_> {
    fn changing(&mut self) -> FsResult<()> {
        self.scratch.changing().map_err(|error| {
            FsError::trap(crate::error::SandboxError::host(
                "removing a scratch folder's marker",
                error,
            ))
        })
    }
}

/// A full table as an error the guest can look at.
fn or_full<T>(result: FsResult<T>) -> FsResult<T> {
    result.map_err(|error| match error.downcast() {
        Ok(code) => code.into(),
        Err(trap) if matches!(trap.downcast_ref(), Some(ResourceTableError::Full)) => {
            ErrorCode::InsufficientMemory.into()
        }
        Err(trap) => FsError::trap(trap),
    })
}

impl types::Host for GuardedView<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        self.wasi.convert_error_code(error)
    }
    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        self.wasi.filesystem_error_code(error)
    }
}

type Fd = Resource<Descriptor>;

impl HostDescriptor for GuardedView<'_> {
    // What looks, and never changes anything.

    async fn advise(
        &mut self,
        fd: Fd,
        offset: Filesize,
        len: Filesize,
        advice: Advice,
    ) -> FsResult<()> {
        self.wasi.advise(fd, offset, len, advice).await
    }
    async fn sync_data(&mut self, fd: Fd) -> FsResult<()> {
        // What the guest writes becomes durable with the answer's commit, not before; syncing
        // the cache would only stop the thread.
        self.wasi.get_type(fd).await.map(drop)
    }
    async fn sync(&mut self, fd: Fd) -> FsResult<()> {
        self.wasi.get_type(fd).await.map(drop)
    }
    async fn get_flags(&mut self, fd: Fd) -> FsResult<DescriptorFlags> {
        self.wasi.get_flags(fd).await
    }
    async fn get_type(&mut self, fd: Fd) -> FsResult<DescriptorType> {
        self.wasi.get_type(fd).await
    }
    async fn read(&mut self, fd: Fd, len: Filesize, offset: Filesize) -> FsResult<(Vec<u8>, bool)> {
        self.wasi.read(fd, len, offset).await
    }
    async fn read_directory(&mut self, fd: Fd) -> FsResult<Resource<DirectoryEntryStream>> {
        or_full(self.wasi.read_directory(fd).await)
    }
    async fn stat(&mut self, fd: Fd) -> FsResult<DescriptorStat> {
        self.wasi.stat(fd).await
    }
    async fn stat_at(
        &mut self,
        fd: Fd,
        flags: PathFlags,
        path: String,
    ) -> FsResult<DescriptorStat> {
        self.wasi.stat_at(fd, flags, path).await
    }
    async fn readlink_at(&mut self, fd: Fd, path: String) -> FsResult<String> {
        self.wasi.readlink_at(fd, path).await
    }
    fn read_via_stream(&mut self, fd: Fd, offset: Filesize) -> FsResult<Resource<DynInputStream>> {
        or_full(self.wasi.read_via_stream(fd, offset))
    }
    async fn is_same_object(&mut self, a: Fd, b: Fd) -> wasmtime::Result<bool> {
        self.wasi.is_same_object(a, b).await
    }
    async fn metadata_hash(&mut self, fd: Fd) -> FsResult<MetadataHashValue> {
        self.wasi.metadata_hash(fd).await
    }
    async fn metadata_hash_at(
        &mut self,
        fd: Fd,
        flags: PathFlags,
        path: String,
    ) -> FsResult<MetadataHashValue> {
        self.wasi.metadata_hash_at(fd, flags, path).await
    }
    fn drop(&mut self, fd: Fd) -> wasmtime::Result<()> {
        HostDescriptor::drop(&mut self.wasi, fd)
    }

    // What may change the folder.

    async fn open_at(
        &mut self,
        fd: Fd,
        path_flags: PathFlags,
        path: String,
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Fd> {
        if open.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE)
            || flags.contains(DescriptorFlags::WRITE)
        {
            self.changing()?;
        }
        or_full(self.wasi.open_at(fd, path_flags, path, open, flags).await)
    }
    async fn set_size(&mut self, fd: Fd, size: Filesize) -> FsResult<()> {
        self.changing()?;
        self.wasi.set_size(fd, size).await
    }
    async fn set_times(
        &mut self,
        fd: Fd,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> FsResult<()> {
        self.changing()?;
        self.wasi.set_times(fd, accessed, modified).await
    }
    async fn set_times_at(
        &mut self,
        fd: Fd,
        flags: PathFlags,
        path: String,
        accessed: NewTimestamp,
        modified: NewTimestamp,
    ) -> FsResult<()> {
        self.changing()?;
        self.wasi
            .set_times_at(fd, flags, path, accessed, modified)
            .await
    }
    async fn write(&mut self, fd: Fd, bytes: Vec<u8>, offset: Filesize) -> FsResult<Filesize> {
        self.changing()?;
        self.wasi.write(fd, bytes, offset).await
    }
    fn write_via_stream(
        &mut self,
        fd: Fd,
        offset: Filesize,
    ) -> FsResult<Resource<DynOutputStream>> {
        self.changing()?;
        or_full(self.wasi.write_via_stream(fd, offset))
    }
    fn append_via_stream(&mut self, fd: Fd) -> FsResult<Resource<DynOutputStream>> {
        self.changing()?;
        or_full(self.wasi.append_via_stream(fd))
    }
    async fn create_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.changing()?;
        self.wasi.create_directory_at(fd, path).await
    }
    async fn remove_directory_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.changing()?;
        self.wasi.remove_directory_at(fd, path).await
    }
    async fn rename_at(
        &mut self,
        fd: Fd,
        path: String,
        new_fd: Fd,
        new_path: String,
    ) -> FsResult<()> {
        self.changing()?;
        self.wasi.rename_at(fd, path, new_fd, new_path).await
    }
    async fn unlink_file_at(&mut self, fd: Fd, path: String) -> FsResult<()> {
        self.changing()?;
        self.wasi.unlink_file_at(fd, path).await
    }

    // What is never allowed.

    async fn link_at(&mut self, _: Fd, _: PathFlags, _: String, _: Fd, _: String) -> FsResult<()> {
        Err(ErrorCode::NotPermitted.into())
    }
    async fn symlink_at(&mut self, _: Fd, _: String, _: String) -> FsResult<()> {
        Err(ErrorCode::NotPermitted.into())
    }
}

impl HostDirectoryEntryStream for GuardedView<'_> {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<DirectoryEntryStream>,
    ) -> FsResult<Option<DirectoryEntry>> {
        self.wasi.read_directory_entry(stream).await
    }
    fn drop(&mut self, stream: Resource<DirectoryEntryStream>) -> wasmtime::Result<()> {
        HostDirectoryEntryStream::drop(&mut self.wasi, stream)
    }
}
