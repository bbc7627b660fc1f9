"""Record of a machine's BMC in the control planes of the tests, and what a registration does to it.

metal-api (internal/grpc/boot-service.go, Register) and metal-apiserver (pkg/repository/machine.go, Register) replace the whole record, without
condition: a request without BMC or FRU leaves empty fields. Power metric and power supplies are not part of a request, so every registration
erases them, also metal-hammer's; metal-bmc reports them again. metal-bmc reports neither user nor password.
"""

FRU = [
    "chassis_part_number",
    "chassis_part_serial",
    "board_mfg",
    "board_mfg_serial",
    "board_part_number",
    "product_manufacturer",
    "product_part_number",
    "product_serial",
]
# Fields of the record: their names in the messages of version 1, those in its REST document, and those in the messages of version 2.
FIELDS = [
    ("address", "address", "address"),
    ("mac", "mac", "mac"),
    ("user", "user", "user"),
    ("password", "password", "password"),
    ("interface", "interface", "interface"),
    ("bmc_version", "bmcversion", "version"),
    ("power_state", "powerstate", "power_state"),
]
# Complete record, as metal-hammer and metal-bmc leave it.
KNOWN = {
    "address": "10.1.0.9:623",
    "mac": "0c:c4:7a:0a:0b:0c",
    "user": "metal",
    "password": "bmc-password-1",
    "interface": "lanplus",
    "bmc_version": "1.74",
    "power_state": "ON",
    "fru": {name: f"known {name}" for name in FRU},
}


def stored(bmc, fru, version):
    """Returns the record after a request. An absent message is empty in protobuf, as it is in the original's database."""
    record = {names[0]: getattr(bmc, names[0 if version == 1 else 2]) for names in FIELDS}
    return record | {"fru": {name: getattr(fru, name) for name in FRU}}


def erased(before, after):
    """Returns the known fields that a registration has erased or changed."""
    flat = lambda record: {k: v for k, v in record.items() if k != "fru"} | record["fru"]
    before, after = flat(before), flat(after)
    return [name for name, value in before.items() if value and after[name] != value]


def document(record):
    """Returns `ipmi` of the REST response of version 1 (GET /v1/machine/{id}/ipmi)."""
    names = {rest: record[name] for name, rest, _ in FIELDS}
    more = {"powermetric": None, "powersupplies": None, "last_updated": "2026-11-24T09:00:00Z"}
    return names | {"fru": dict(record["fru"])} | more
