"""Messages of metal-stack's API v1 for first.py, built from a table of field numbers. It contains nothing of metal-stack's own files."""

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

# message: "number name kind", where kind is s(tring), u(int64), w (uint32), i(nt64), b(ool) or a message; * is "repeated".
TABLE = {
    "Empty": "",
    "SuperUserPasswordResponse": "1 feature_disabled b, 2 super_user_password s",
    "RegisterRequest": "1 uuid s, 2 hardware Hardware, 3 bios Bios, 4 ipmi Ipmi, 5 tags s*, 6 metal_hammer_version s, 7 partition_id s",
    "RegisterResponse": "1 uuid s, 2 size s, 3 partition_id s",
    "Hardware": "1 memory u, 3 disks Disk*, 4 nics Nic*, 5 cpus Cpu*, 6 gpus Gpu*",
    "Disk": "1 name s, 2 size u",
    "Cpu": "1 vendor s, 2 model s, 3 cores w, 4 threads w",
    "Gpu": "1 vendor s, 2 model s",
    "Nic": "1 mac s, 2 name s, 3 neighbors Nic*, 4 hostname s, 5 identifier s",
    "Bios": "1 version s, 2 vendor s, 3 date s",
    "Ipmi": "1 address s, 2 mac s, 3 user s, 4 password s, 5 interface s, 6 fru Fru, 7 bmc_version s, 8 power_state s",
    "Fru": "1 chassis_part_number s, 2 chassis_part_serial s, 3 board_mfg s, 4 board_mfg_serial s, 5 board_part_number s, "
    "6 product_manufacturer s, 7 product_part_number s, 8 product_serial s",
    "WaitRequest": "1 machine_id s",
    "ReportRequest": "1 uuid s, 2 console_password s, 3 boot_info BootInfo, 4 success b, 5 message s",
    "BootInfo": "1 image_id s, 2 primary_disk s, 3 os_partition s, 4 initrd s, 5 cmdline s, 6 kernel s, 8 bootloader_id s",
    "AbortReinstallRequest": "1 uuid s, 2 primary_disk_wiped b",
    "AbortReinstallResponse": "1 boot_info BootInfo",
    # A map is a list of its entries.
    "SendRequest": "1 events Entry*",
    "Entry": "1 key s, 2 value Event",
    "Event": "1 time Time, 2 event s, 3 message s",
    "Time": "1 seconds i, 2 nanos n",
    "SendResponse": "1 events u, 2 failed s*",
}
KINDS = {"s": 9, "u": 4, "w": 13, "i": 3, "n": 5, "b": 8}


def messages():
    file = descriptor_pb2.FileDescriptorProto(name="table.proto", package="table", syntax="proto3")
    for name, fields in TABLE.items():
        message = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            number, field, kind = text.split(" ")
            one = message.field.add(name=field, number=int(number), label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            if kind in KINDS:
                one.type = KINDS[kind]
            else:
                one.type, one.type_name = 11, f".table.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"table.{name}")) for name in TABLE}


Messages = messages()


def plain(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def unknown(message, place):
    """Returns the fields of a message that are not in the table, including nested messages."""
    found = [f"{place}.{field.field_number}" for field in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type:
            inner = value if isinstance(value, list) or hasattr(value, "__len__") else [value]
            for one in inner:
                found += unknown(one, f"{place}.{field.name}")
    return found
