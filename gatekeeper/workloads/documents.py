"""Documents of several hundred tokens for the slice ``long_context``: prose, records and code."""

from __future__ import annotations

__all__ = ["DOCUMENTS"]

_FERRY = """\
Operating notes for the cable ferry at Lower Wendel

The ferry hangs on two steel cables, one on each side. It has no rudder and no propeller: the current pushes against the hull, and the angle of the hull to the current decides how fast it crosses. The deckhand sets the angle with the two winches at the bow and at the stern. In still water the ferry does not move by itself, and the emergency motor must be used.

Before the first crossing of the day, the deckhand walks along both cables from the ramp to the first mast and looks for broken strands. Three broken strands on one metre are the end of service until the rope maker has come. Then the winches are greased and each is turned through ten full turns by hand. After that the bilge is measured with the marked stick; more than twelve centimetres of water are pumped out and entered in the book. The bell is rung once, the ramp lights are switched on, and only then may the chain at the ramp be opened.

The ferry carries at most four cars, or one lorry of up to nine tonnes and no cars. Cars are placed over the middle line, heavy ones first. Engines are switched off, handbrakes are pulled, and drivers stay beside their cars, not in them. Bicycles stand at the rails on the upstream side. Animals are led on board after the vehicles and led off before them.

Wind matters more than rain. Up to wind force five the ferry crosses with cars. At force six it crosses with people and bicycles only. Above force six the deckhand asks the ferry master, and the ferry master alone decides whether anybody crosses. The flag at the mast is read for half a minute before the decision, because gusts deceive.

In fog the bell is rung every thirty seconds for as long as the ferry is away from a ramp. The crossing is made with the blunt angle, so that it takes about seven minutes in place of four. A second person stands at the bow with the lamp. If a boat answers with its own bell, the winches are set straight and the ferry waits in the stream until the boat has passed.

When the river rises above the red mark at the pillar, drifting wood becomes dangerous. The deckhand then keeps the boathook at hand and watches upstream. Above the double red mark the service ends, the ferry is moored at the western ramp with all four ropes, and the cables are lowered to the river bed with the large winch. The lowering takes two people and about forty minutes. The harbour office is told by telephone before it begins.

At the end of the day the cash is counted by two people, the number of cars and of people is entered in the book, the ramp lights are switched off, and the chain is locked. The last person to leave rings the bell twice, so that the village knows that nobody will be fetched any more."""

_MINUTES = """\
Minutes of the spring meeting of the housing cooperative Seven Lindens

Held on 9 April in the laundry room of house 3. Present: 31 of 46 members. In the chair: Oduya Brandt. Minutes: Pilar Svensson. The meeting began at 18:05 and ended at 20:40.

1. Roof of house 2. Tomasz Reiter reported that the roofer found rotten battens on the north side. The repair costs 38,400 if it is done together with the insulation, and 29,900 if it is done alone; insulation later would cost 21,000 more. Mirjam Oake asked whether the scaffolding could be shared with the painters of house 5. Tomasz will ask both firms by 20 April. The meeting decided to repair and insulate together: 24 for, 4 against, 3 abstaining.

2. Laundry. The second machine has been out of order since February. Gert Halloran repaired the pump twice and advises against a third attempt. A new machine costs 1,150, a used one with one year of warranty 540. Several members said that the queue on Saturdays reaches the stairs. The meeting decided to buy the used machine: 19 for, 11 against, 1 abstaining. Gert will fetch it with the trailer of house 1 before the end of the month.

3. Bicycles. There are 71 bicycles for 48 stands. Ines Falk proposed to mark every bicycle with a ribbon and to give away in June those whose ribbon has not been removed by then. Some members were afraid that owners on holiday would lose theirs. The proposal was changed: bicycles without an owner are kept in the cellar of house 4 until October. Decided with 27 for, none against, 4 abstaining. Ines will tie the ribbons on 2 May.

4. Noise. Two members complained about music in the courtyard after ten in the evening. The chair reminded everybody of the house rules, which ask for quiet from ten to seven. Theo Mbeki offered to move the drum lessons of the young people to the cellar of house 6, if somebody helps him to line the walls. Five members will help on the last Sunday in April. There was no vote.

5. Garden. The three old pear trees beside house 7 bear fruit, but one leans towards the playground. The tree surveyor recommends a rope to the wall, for 310, and a new inspection in two years. Felling would cost 900. The meeting decided on the rope: 30 for, none against, 1 abstaining. Mirjam Oake will order it this week.

6. Money. Treasurer Lucien Abara presented the accounts. Income was 212,300 and expenses were 198,750. Heating rose by 14 percent although the winter was mild; Lucien suspects the valve of house 5 and will have it measured in May. The reserve stands at 86,000 before the roof. The meeting approved the accounts: 29 for, none against, 2 abstaining.

7. Any other business. The swing is missing a bolt; Gert has one. The summer festival will be on 21 June. Pilar collects songs for the choir until the end of May."""

_STORY = """\
The last sheet

When the land survey was closed, the drawers were given to the school, the instruments to the museum, and the house at the customs bridge to nobody, because nobody had asked for it. Ilse Maron stayed. She had drawn forty-one of the forty-two sheets of the valley, and she saw no reason to stop at forty-one merely because her salary had.

Her nephew Bruno came every Thursday with bread and with the same question. He had a buyer for the house, a man who rented rooms to walkers and who would keep the stove and paint the shutters. "He would give you the small room upstairs," said Bruno, "for life, in writing." Ilse measured the bread with her eyes, as she measured everything, and thanked him for it.

The forty-second sheet was the high moor. On the old map it was a grey patch with the words *not passable*, and the surveyors before her had been content with that. Ilse was not. She went up in May when the snow had gone from the hollows, with a plane table, forty stakes and a flask, and came down in September with thirty-nine stakes and a cough. Every evening she wrote the angles into a book. Every winter she drew them, and every spring they were wrong. A pool that had been round was long. A birch that had been her fixed point stood eleven paces farther west, and it had not fallen and had not been planted anew; the same nail was in it.

The teacher, Anselm Voss, was the only one to whom she showed the sheets. He laid six years of them over one another against the window and was silent for a time. "It turns," he said finally. "Slowly, like a dish on water. You cannot draw it, Ilse, you can only draw the day on which you were there." He wanted her to write to the academy. With such an observation, he said, she would be remembered.

She did not write to the academy. She thought of the man with the shutters, of the walkers, of the railing and of the sign with the little figure that there would be, and of a moor which had to stand still because people had paid to see it. But she also thought of the girl from the mill who had gone up to look for a goat the year before and had been found only because Ilse knew how far the birch had moved.

In the end she took a clean sheet, drew the frame, the scale, the arrow to the north and the names of the four farms at the edge. In the corner, in the fine hand that had been praised in two capitals, she wrote the date, and underneath: *Ask at the customs bridge before you go.* The middle she left empty. "A map that is wrong is a trap," she said to Anselm, "and an empty one is a question. People who come with a question can be told the answer of the day."

On Thursday Bruno came with the bread. The man with the shutters stood behind him with his hat in his hands. Ilse let them both in, put the kettle on the stove and unrolled the sheet on the table."""

_MODULE = '''\
"""Parts of a workshop: which shelf holds how many of what."""

from dataclasses import dataclass, field


class OutOfStock(Exception):
    """Fewer parts are there than were asked for."""


@dataclass(frozen=True)
class Part:
    """One kind of part. Weight in grams."""

    number: str
    name: str
    weight: int


@dataclass
class Shelf:
    """A shelf with room for a limited number of parts."""

    label: str
    capacity: int
    stock: dict[str, int] = field(default_factory=dict)

    @property
    def free(self):
        """How many more parts fit."""
        return self.capacity - sum(self.stock.values())

    def put_back(self, part, count=1):
        """Add parts; ValueError when they do not fit."""
        if count > self.free:
            raise ValueError(f"{count} of {part.number} do not fit on {self.label}")
        self.stock[part.number] = self.stock.get(part.number, 0) + count

    def take(self, part, count=1):
        """Remove parts; OutOfStock when there are too few."""
        found = self.stock.get(part.number, 0)
        if count > found:
            raise OutOfStock(f"{self.label} holds {found} of {part.number}")
        if count == found:
            del self.stock[part.number]
        else:
            self.stock[part.number] = found - count


class Workshop:
    """Shelves and the parts that are reserved for jobs."""

    def __init__(self, shelves, parts):
        self.shelves = {shelf.label: shelf for shelf in shelves}
        self.parts = {part.number: part for part in parts}
        self.reserved = {}

    def find(self, number):
        """Labels of the shelves that hold a part, fullest first."""
        holding = [s for s in self.shelves.values() if number in s.stock]
        return [s.label for s in sorted(holding, key=lambda s: -s.stock[number])]

    def count(self, number):
        """How many of a part all shelves hold together."""
        return sum(s.stock.get(number, 0) for s in self.shelves.values())

    def reserve(self, job, number, count=1):
        """Take parts from the fullest shelves and keep them for a job."""
        if number not in self.parts:
            raise KeyError(number)
        if count > self.count(number):
            raise OutOfStock(f"{self.count(number)} of {number} in the workshop")
        left = count
        for label in self.find(number):
            shelf = self.shelves[label]
            taken = min(left, shelf.stock[number])
            shelf.take(self.parts[number], taken)
            left -= taken
            if left == 0:
                break
        job_parts = self.reserved.setdefault(job, {})
        job_parts[number] = job_parts.get(number, 0) + count

    def cancel(self, job):
        """Put the parts of a job back where there is room."""
        for number, count in self.reserved.pop(job, {}).items():
            for shelf in self.shelves.values():
                fits = min(count, shelf.free)
                if fits:
                    shelf.put_back(self.parts[number], fits)
                    count -= fits
'''

_THREAD = """\
From: Noor Vestergaard, 3 March, 08:12
Subject: Locker 14 does not open

Good morning. Since yesterday evening my parcel is in locker 14 at the station. The display accepts my code, says "Locker open", and nothing opens. I can hear a click. I tried it four times and then the screen told me to wait for an hour. The parcel holds seedlings, so it is a little urgent.

From: Support desk (Hamid), 3 March, 09:40

Good morning, Noor. I am sorry about the seedlings. I opened locker 14 from here at 09:31 and the system reports the door as open. Could you please look whether it is? If a door hangs, it usually helps to push it firmly once while the display says "Locker open".

From: Noor Vestergaard, 3 March, 12:55

I went there in my lunch break. The door is closed. Pushing did not help, and a lady behind me told me that locker 13 had been open all morning and that it was empty. Can it be that you open the wrong one?

From: Support desk (Hamid), 3 March, 13:20

That is a good thought, but the numbers are fixed by the wiring and were checked in January. I have asked our technician Ruta to go there today. Locker 13 has been reported as closed since last week, so I cannot explain what the lady saw. Please keep your code; it stays valid until the parcel is out.

From: Ruta Kalnins (field service), 3 March, 17:48

I was at the station at 17:00. Locker 14 was closed and so was 13. I opened both with the service key. 14 held a parcel for Vestergaard, 13 was empty. The latch of 14 was clean and worked ten times out of ten. I put the parcel back and closed it, because I may not hand it out. I found no fault. My guess is that the code was typed for another station.

From: Noor Vestergaard, 3 March, 19:05

With respect, I know at which station I am. I have just been there again, with the code, and this time I made a film. You can see my code, you can see "Locker open", and you can see that the door of number 13 opens. I put the film on the usual page. It was closed when I came, and I did not touch it.

From: Support desk (Hamid), 4 March, 08:30

Noor, thank you for the film. It is very clear and I owe you an apology. I showed it to Ruta this morning. She remembers that on 26 February the painters unscrewed the doors of the lower row. She is on her way with the wiring plan.

From: Ruta Kalnins (field service), 4 March, 10:15

Found it. The painters put the two doors back in the wrong order, with their locks and their number plates. The cable that belongs to lock 14 now hangs on the door with the number 13, and the other way round. When I was there yesterday I used the service key, which does not care about cables, so everything looked right. The doors are exchanged and I tested both with codes. The parcel is still inside and one of the seedlings is looking out of the box.

From: Noor Vestergaard, 4 March, 12:40

It opened at the first attempt. Nine of twelve seedlings are alive. I would like to know what you will do so that this does not happen to somebody with medicine in the locker."""

_RULES = """\
Rules of the tool library in Kastanienhof

Membership. Everybody who lives in the district may become a member. The fee is 24 a year, 12 for people in training and nothing for people who repair one of our tools in that year. A member shows an identity card once and is then known by the number on the yellow card. A lost yellow card costs 3.

Borrowing. A member may have five tools at a time, of which two may be machines. Hand tools may be kept for three weeks, machines for one week, and the long ladder, the tile cutter and the floor sander for two days, because many people wait for them. Whoever wants a tool longer asks before the last day; one extension is given if nobody has reserved it. Reservations are made at the counter or by telephone and are kept until noon of the following day.

Bringing back. Tools come back clean, dry and complete, with the case and the manual. Saw blades and drill bits may be worn but not broken. What was broken in normal use is repaired by us and costs nothing, but it must be said: whoever puts a broken machine on the shelf without a word endangers the next person, and loses the card for six months.

Late. For each day after the last day a hand tool costs 0.50 and a machine costs 2. After seven days we telephone. After fourteen days the card is blocked until the tool is back and the amount is paid. The amount never exceeds half of the price of a new tool. Whoever was ill does not pay and need not prove it.

Safety. The chain saw, the angle grinder, the circular saw and the floor sander are lent only to people over eighteen who have taken part in our course on the first Saturday of the month. The course is valid for three years. Goggles and ear protection are lent with every machine and are part of it: who leaves them here leaves the machine here. Machines must not be used by other people, not even by other members, because we know only what you have learnt.

Children. From the age of ten children may have a green card with the signature of a parent. With it they may borrow hand tools with a green dot. Knives, axes and everything with a plug have no green dot.

Reserve shelf. Tools on the red shelf are waiting for repair and may not be taken, not even by members who know how to repair them. Members who want to help come on Wednesday evening from seven to nine; there is soup. Whoever has repaired three tools may take home one of the machines that we have replaced.

Gifts. We are glad to be given tools but cannot take all of them. Please ask before you bring anything with an engine. Garden tools are taken only from October to March, when there is room.

Damage. We lend tools and not results. The library is not liable for crooked shelves, wet cellars or lost Sundays. It is liable for machines that leave our counter in a dangerous state, and it is insured for that.

Changes. These rules were decided on by the members on 14 November with 63 votes against 5. They are read aloud every year, and every member may propose one change in writing until the end of October."""

_ZONES = ("seedlings", "tomatoes", "ferns", "citrus")
_EVENTS = (
    ("INFO", "vent opened to 40 percent, humidity {} percent"),
    ("INFO", "watered for {} seconds through valve {}"),
    ("INFO", "lamp switched off, light is {} lux"),
    ("WARN", "valve {} did not report closed within 5 seconds, trying again"),
    ("INFO", "vent closed, temperature {} degrees"),
)


def _log() -> str:
    """A greenhouse's morning: 26 lines, the same everywhere."""
    lines = ["Log of the greenhouse controller, 17 July, 05:00 to 09:20", ""]
    for step in range(26):
        zone = _ZONES[(step * 3) % 4]
        level, text = _EVENTS[(step * step + step // 3) % 5]
        first = 12 + (step * 7) % 31 if level == "INFO" else 3
        message = text.format(first, 1 + step % 4)
        lines.append(f"{5 + step // 6:02d}:{step * 10 % 60:02d} {level} zone={zone} {message}")
    return "\n".join(lines)


def _readings() -> str:
    """Three days of five stations at three hours: 45 rows of numbers."""
    lines = ["Readings of the weather stations, 3 to 5 May", "", "day,hour,station,celsius,rain_mm"]
    for day in (3, 4, 5):
        for hour in ("06", "12", "18"):
            for place, station in enumerate(("harbour", "mill", "school", "tower", "quarry")):
                tenths = 61 + day * 7 + place * 5 + (70 if hour == "12" else 30 * (hour == "18"))
                rain = "" if (day, station) == (4, "mill") else f"{(day * place) % 4}.{place}"
                warm = tenths + (day * 13 + place * 29 + int(hour)) % 23
                lines.append(f"{day},{hour},{station},{warm // 10}.{warm % 10},{rain}")
    return "\n".join(lines)


DOCUMENTS = {
    "ferry": _FERRY,
    "minutes": _MINUTES,
    "log": _log(),
    "story": _STORY,
    "module": _MODULE,
    "readings": _readings(),
    "thread": _THREAD,
    "rules": _RULES,
}
"""Text of each document by name."""
