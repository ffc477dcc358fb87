//! Cloud Hypervisor's client, which shares no code with us.

use std::os::fd::AsRawFd;

use dma::Mapping;
use shadowbell_vfio_user::codec::wire::irq;

use crate::{
    device::{AREA, DMA, RAISE_MSIX},
    rig::{Rig, new_eventfd, signalled},
};

#[test]
fn the_independent_client_drives_the_device() {
    let rig = Rig::new();
    let mut client = vfio_user::Client::new(&rig.path).unwrap();
    assert_eq!(client.region(0).unwrap().size, 16384);
    assert_eq!(client.region(7).unwrap().size, 4096);
    assert!(client.region(0).unwrap().file_offset.is_none());
    assert!(!client.resettable(), "it reads the flag the wrong way round");
    let info = client.get_irq_info(irq::MSIX).unwrap();
    assert_eq!((info.count, info.flags), (40, 1));

    let (ram, fd) = Mapping::new_shared("ram", 0x4000).unwrap();
    client.dma_map(0, 0x10000, 0x4000, fd.as_raw_fd()).unwrap();
    client.region_write(0, DMA, &0x10008u64.to_le_bytes()).unwrap();
    let mut bytes = [0; 4];
    ram.window().read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"DMA!");
    client.dma_unmap(0x10000, 0x4000).unwrap();

    let events: Vec<_> = (0..16).map(|_| new_eventfd()).collect();
    let fds: Vec<_> = events.iter().map(AsRawFd::as_raw_fd).collect();
    client.set_irqs(irq::MSIX, irq::DATA_EVENTFD | irq::ACTION_TRIGGER, 8, 16, &fds).unwrap();
    client.region_write(0, RAISE_MSIX, &[23]).unwrap();
    assert!(signalled(&events[15]));
    client.set_irqs(irq::MSIX, irq::DATA_NONE | irq::ACTION_TRIGGER, 0, 0, &[]).unwrap();

    client.region_write(0, 0, &[1, 2, 3, 4]).unwrap();
    client.reset().unwrap();
    client.region_read(0, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    client.region_read(7, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [0x1d, 0x1d, 0x1f, 0x1f]);
}

#[test]
fn the_independent_client_does_not_hang_at_the_end_of_a_region() {
    let rig = Rig::new();
    let mut client = vfio_user::Client::new(&rig.path).unwrap();
    let mut bytes = [0; 8];
    client.region_read(0, 16384, &mut bytes).unwrap();
    assert_eq!(bytes, [0xff; 8]);
    client.region_write(3, 0, &bytes).unwrap();
    client.region_read(7, 4092, &mut bytes).unwrap();
    assert_eq!(bytes, [0xff; 8]);
    client.shutdown().unwrap();
    drop(client);
    assert_eq!(rig.statistics().stray_accesses, 3);
    vfio_user::Client::new(&rig.path).unwrap();
}

#[test]
fn the_independent_client_is_offered_the_area_that_can_be_mapped() {
    let rig = Rig::with_area(AREA.0, AREA.1);
    let client = vfio_user::Client::new(&rig.path).unwrap();
    let region = client.region(0).unwrap();
    assert_eq!(region.flags, 0b1111, "read, write, mmap, capabilities");
    assert_eq!(region.sparse_areas.iter().map(|area| (area.offset, area.size)).collect::<Vec<_>>(), [AREA]);
    let file = region.file_offset.as_ref().unwrap();
    assert_eq!(file.start(), 0);
    assert_eq!(file.file().metadata().unwrap().len(), AREA.0 + AREA.1);
    assert!(client.region(4).unwrap().file_offset.is_none());
}
