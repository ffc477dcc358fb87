//! The driver through a server that we did not write: Cloud Hypervisor's.

use std::{fs::File, os::fd::OwnedFd, sync::Arc};

use controller::NvmeFunction;
use dma::{AddressSpace, Backing, Protection};
use pci::{Interrupt, PciFunction};
use shadowbell_driver::{Device, DoorbellPolicy, Doorbells, InProcess, QueueOptions, VfioUser};
use vfio_bindings::bindings::vfio::vfio_region_info;
use vfio_user::ClientOptions;
use vfio_user_chv::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::rig::{PATIENCE, bytes, nvme, options, pattern, ram, read, write};

/// Their server calls it; the function runs on its own thread.
struct Backend {
    device: InProcess<NvmeFunction>,
    space: AddressSpace,
}

fn other(error: impl std::fmt::Display) -> std::io::Error {
    std::io::Error::other(error.to_string())
}

impl Backend {
    fn set_memory(&self) -> std::io::Result<()> {
        let map = self.space.snapshot();
        self.device.with(move |function| function.set_memory(map)).map_err(other)
    }
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> std::io::Result<()> {
        let len = data.len();
        let read = self.device.with(move |function| {
            let mut data = vec![0; len];
            match region {
                7 => function.config_read(u16::try_from(offset).unwrap(), &mut data),
                bar => function.bar_read(bar as usize, offset, &mut data),
            }
            data
        });
        data.copy_from_slice(&read.map_err(other)?);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> std::io::Result<()> {
        let data = data.to_vec();
        let written = self.device.with(move |function| match region {
            7 => function.config_write(u16::try_from(offset).unwrap(), &data),
            bar => function.bar_write(bar as usize, offset, &data),
        });
        written.map_err(other)
    }

    fn dma_map(
        &mut self,
        _: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> std::io::Result<()> {
        let fd: OwnedFd = fd.unwrap().into();
        self.space.map(address, size, Backing::File { fd, offset }, Protection::READ_WRITE).map_err(other)?;
        self.set_memory()
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> std::io::Result<()> {
        self.space.unmap(address, size).map_err(other)?;
        self.set_memory()
    }

    fn reset(&mut self) -> std::io::Result<()> {
        self.device.with(PciFunction::reset).map_err(other)
    }

    fn set_irqs(&mut self, index: u32, _: u32, start: u32, count: u32, fds: Vec<File>) -> std::io::Result<()> {
        assert_eq!((index, count as usize), (2, fds.len()));
        let interrupts: Result<Vec<_>, _> = fds.into_iter().map(|fd| Interrupt::new(fd.into())).collect();
        let interrupts = interrupts?;
        let connected = self.device.with(move |function| {
            for (vector, interrupt) in (start..).zip(interrupts) {
                function.connect_msix(u16::try_from(vector).unwrap(), Some(interrupt));
            }
        });
        connected.map_err(other)
    }
}

#[test]
fn another_vfio_user_server_serves_it_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("chv.sock");
    let device = InProcess::spawn(nvme(vec![ram(1 << 20, 4096)])).unwrap();
    let (bars, vectors) = device.with(|function| (function.bars(), function.msix_vectors())).unwrap();
    let regions = (0..9)
        .map(|index| ServerRegion {
            region_info: vfio_region_info {
                argsz: 32,
                flags: 3,
                index,
                size: if index == 7 {
                    256
                } else {
                    bars.get(index as usize).copied().flatten().map_or(0, |bar| bar.size)
                },
                ..Default::default()
            },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        })
        .collect();
    let irqs =
        (0..5).map(|index| IrqInfo { index, flags: 1, count: if index == 2 { vectors.into() } else { 0 } }).collect();
    let server = Server::new(&path, true, irqs, regions).unwrap();
    let thread = std::thread::spawn(move || {
        server.run(&mut Backend { device, space: AddressSpace::new() }).unwrap();
    });

    let transport = VfioUser::connect(&path, ClientOptions::default().timeout(PATIENCE)).unwrap();
    let mut driver = Device::open(Arc::new(transport), options(DoorbellPolicy::Shadow)).unwrap();
    assert_eq!(driver.doorbells(), Doorbells::Shadow);
    let disk = driver.namespaces()[0];
    let buffer = driver.allocate(8192).unwrap();
    for interrupt in [true, false] {
        let queue_options = QueueOptions::default().with_entries(8).with_interrupt(interrupt);
        let mut queue = driver.create_queue_pair(queue_options).unwrap();
        for lba in 0..50 {
            let data = pattern(lba, 8192);
            buffer.write(0, &data).unwrap();
            assert!(write(&mut queue, &disk, lba, &buffer).is_success());
            buffer.zero();
            assert!(read(&mut queue, &disk, lba, &buffer).is_success());
            assert!(bytes(&buffer, 0, 8192) == data);
        }
        driver.delete_queue_pair(queue).unwrap();
    }
    driver.reset().unwrap();
    driver.shutdown().unwrap();
    drop(buffer);
    thread.join().unwrap();
}
