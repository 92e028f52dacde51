"""Sentences of everyday life, made by a small grammar: what encyclopaedias and old books hardly say.

In: how many, and a seed. Out: that many different sentences: what people, animals and things do, questions, requests, headlines, opinions. Next:
`passages.py` mixes them with the texts of a corpus, so that a student of sentence vectors (`train/distill_vectors.py`) meets short plain sentences that differ
in one word. They are true of nothing; a teacher says what each means.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

MOST_TRIES = 20  # for each sentence that is wanted, before the grammar counts as used up

# A name in braces is one of the words or phrases under that name, chosen at random, again and again until no brace is left.
GRAMMAR: dict[str, str] = {
    "text": "{scene}|{scene}|{scene}|{event}|{question}|{question}|{request}|{headline}|{opinion}|{fact}|{plan}",
    "scene": "{who} is {doing}.|{who} is {doing} {where}.|{many} are {doing_many}.|{many} are {doing_many} {where}.|{animal_one} is {animal_does}.|"
    "{animal_one} is {animal_does} {where}.|{who} {posture} {where}.|{thing_one} is on {a_surface}.|{who} and {who} are {doing_many} {where}.|"
    "{who} in {a_colour} {garment} is {doing}.|there is {thing_one} {where}.|{who} is not {doing}.|nobody is {doing} {where}.",
    "event": "{who} {did}.|{who} {did} {when}.|{who} {did} because {reason}.|{when}, {who} {did}.|{who} {did} and then {did}.|{person} {did} {when}.|"
    "{person} said that {reason}.",
    "question": "how do i {do} my {possession}?|how can i {do} my {possession} {when_soon}?|what is the best way to {do} a {possession}?|where can i {do} my {possession}?|"
    "why is my {possession} {state}?|is it {judged} to {do} a {possession}?|what time does the {shop} {open}?|how much does {thing_one} cost?|"
    "how long does it take to {do} a {possession}?|who invented the {possession}?|what does it mean when my {possession} is {state}?|"
    "should i {do} my {possession} or {do} it?|how far is it to the {shop}?|can {animal_many} {animal_can}?|what do {animal_many} eat?|"
    "when should i {do} my {possession}?|which {possession} is the best for {purpose}?|what is a {possession} used for?|do you know how to {do} a {possession}?",
    "request": "please {do} my {possession}.|can you {do} my {possession} {when_soon}?|i want to {do} my {possession}.|i need to {do} a {possession} {when_soon}.|"
    "remind me to {do} my {possession} {when_soon}.|tell me how to {do} my {possession}.|could you help me {do} my {possession}?|"
    "set an alarm for {hour} {when_soon}.|play some {music}.|what is the weather like in {place} {when_soon}?|book a {meal_table} for {number} {when_soon}.|"
    "find me a cheap flight from {place} to {place}.|i would like to return my {possession}.|my {possession} is {state}, what should i do?|"
    "cancel my {possession}.|add {food} to my shopping list.|turn {off} the {device} in the {room}.|transfer {number} hundred dollars to my {account}.|"
    "i lost my {possession} {where}.|order {food} for {number}.|how do you say {possession} in {language}?",
    "headline": "{number} {hurt} in {place} {disaster}|{place} {power} {power_does} {topic}|{place} {disaster} {hurt_many} {number}|{company} {company_does} {topic}|"
    "{power} of {place} {power_does} {topic} after {disaster}|shares of {company} {market}|{place} and {place} {meet} over {topic}|"
    "{number} {hurt} as {disaster} hits {place}|{place} beat {place} in {sport} final|police arrest {number} in {place} over {crime}|"
    "{topic} talks in {place} {market}|oil prices {market} after {disaster} in {place}|{company} to cut {number} thousand jobs in {place}",
    "opinion": "the {shop} was {judged}.|i think {possession} prices are {judged}.|this {possession} is {judged}, but the {possession} is {judged}.|the {food} was {judged} and the {staff} was {judged}.|"
    "i did not like the {food}.|the {work} was {judged}.|{person} thinks the {work} is {judged}.|i have never seen such a {judged} {work}.|the {staff} at the {shop} was {judged}.|"
    "my new {possession} is {judged}.|it was a {judged} day {where}.",
    "fact": "{animal_many} {animal_can}.|{animal_many} do not {animal_can}.|a {possession} is used for {purpose}.|{food} is made from {material}.|"
    "the {device} uses {material}.|{place} is {direction} of {place}.|{material} is {state_of_matter}.|the {shop} {opens} at {hour}.|"
    "{animal_many} are smaller than {animal_many}.|most {animal_many} eat {food}.",
    "plan": "{person} wants to {do} the {possession} {when_soon}.|we are going to {place} {when_soon}.|they decided to {do} the {possession} before {hour}.|"
    "i will {do} the {possession} if {reason}.|she has to {do} her {possession} {when_soon}.|he forgot to {do} his {possession}.|"
    "you should {do} your {possession} because {reason}.|{person} is going to {place} to {do} a {possession}.",
    "who": "{a_person}|{a_person}|{a_kind} {person_kind}|the {person_kind}",
    "a_person": "a man|a woman|a boy|a girl|a child|a baby|a person|a lady|a {job}|a {job}|someone|an old man|an old woman",
    "a_kind": "a young|a tall|a little|a happy|a tired|a smiling|a bald|a strong|a blond|a thin|a famous|a lonely",
    "person_kind": "man|woman|boy|girl|child|{job}",
    "job": "doctor|teacher|farmer|cook|soldier|singer|dancer|waiter|driver|nurse|student|painter|worker|policeman|fisherman|tourist|cyclist|runner|player|swimmer|"
    "climber|guitarist|pilot|carpenter|clown|skater|surfer|photographer|reporter|lawyer|scientist|priest|barber|baker|sailor|shepherd",
    "many": "two men|two women|two boys|two girls|three children|several people|a group of people|a few {job}s|many {job}s|a family|a couple|two {job}s|a crowd|four friends|some kids|no children",
    "person": "anna|john|my mother|my brother|her father|the neighbour|his wife|our boss|my friend|the {job}|maria|david|the president|their son|the manager",
    "doing": "{handling} {thing_one}|{handling} {thing_one}|{handling} {thing_one} with {tool}|playing the {instrument}|playing {sport}|riding {ride}|eating {food}|cooking {food}|"
    "cutting {food} with {tool}|drinking {drink}|pouring {drink} into {container}|talking on the phone|{moving}|{moving}|reading {reading}|writing {writing}|"
    "putting on {a_colour} {garment}|wearing {a_colour} {garment}|feeding {animal_one}|holding {animal_one}|singing|dancing|sleeping|laughing|crying|smoking|speaking to {a_person}|"
    "taking a picture of {animal_one}|adding {food} to {container}|mixing {food} in {container}|slicing {food}|peeling {food}|looking at {thing_one}|watching {work_a}",
    "doing_many": "playing {sport}|{moving}|eating {food}|talking|dancing|singing|fighting|{handling} {thing_one}|playing the {instrument}|waiting|working|watching {work_a}|drinking {drink}|laughing|"
    "riding {ride_many}|cooking {food}|sitting around {a_surface}|looking at {thing_one}|arguing with {a_person}",
    "handling": "holding|carrying|cleaning|washing|painting|throwing|kicking|breaking|repairing|opening|lifting|pushing|pulling|buying|selling|drawing|hitting|dropping|catching|building|moving|fixing|hiding|stealing|folding|cutting",
    "moving": "running|walking|jumping|swimming|climbing|skiing|surfing|skating|hiking|dancing|crawling|falling|diving|standing|sitting|jogging|sliding|marching|kneeling|exercising",
    "posture": "sits|stands|lies|sleeps|waits|works|plays|walks|runs|rests",
    "thing_one": "a ball|a box|a chair|a table|a car|a book|a knife|a bag|a bottle|a door|a window|a hat|a lamp|a rope|a fence|a piece of paper|a letter|a phone|a computer|a camera|a ladder|a bicycle|a bucket|a mirror|a clock|a cup|"
    "a plate|a toy|a gun|a flag|a wall|a rock|a tree|a flower|a boat|a kite|an umbrella|a basket|a suitcase|a guitar|a piano|a painting|a bed|a sofa|a stick|a coin|a ring|a drum",
    "tool": "a knife|a hammer|a stick|a brush|scissors|both hands|a cloth|a rope|a machine|a spoon|an axe|a saw|a fork",
    "instrument": "guitar|piano|violin|flute|drums|trumpet|harp|keyboard|cello|saxophone",
    "sport": "football|soccer|tennis|basketball|cricket|baseball|rugby|golf|chess|cards|volleyball|hockey|table tennis|handball",
    "ride": "a horse|a bicycle|a motorcycle|a skateboard|an elephant|a scooter|a bus|a train|a camel|a wave",
    "ride_many": "horses|bicycles|motorcycles|skateboards|camels|scooters|the bus",
    "food": "an apple|bread|rice|meat|fish|soup|cheese|pasta|a sandwich|an onion|potatoes|a tomato|a banana|cake|eggs|a carrot|pizza|salad|chicken|butter|garlic|ice cream|noodles|a cucumber|shrimp|beans|chocolate|mushrooms|pepper|sugar|a melon",
    "drink": "water|milk|tea|coffee|wine|beer|juice|oil|lemonade|hot chocolate",
    "container": "a bowl|a pan|a glass|a pot|a cup|a bucket|a bottle|a jar",
    "reading": "a book|a newspaper|a letter|a map|a magazine|a sign|the news",
    "writing": "a letter|a book|a song|on a blackboard|a note|an essay|a report",
    "a_colour": "a red|a blue|a white|a black|a green|a yellow|a brown|a pink|a grey|an orange|a striped",
    "garment": "shirt|dress|jacket|hat|coat|suit|sweater|scarf|uniform|helmet|swimsuit|skirt",
    "animal_one": "a dog|a cat|a horse|a bird|a cow|a black dog|a white cat|a small dog|a monkey|a rabbit|a sheep|an elephant|a lion|a tiger|a panda|a kitten|a puppy|a squirrel|a turtle|a duck|a fish|a bear|a brown dog|a goat|a parrot",
    "animal_many": "dogs|cats|horses|birds|cows|monkeys|rabbits|sheep|elephants|lions|tigers|pandas|turtles|ducks|bears|snakes|bees|whales|sharks|wolves|mice|owls|ants|frogs|spiders",
    "animal_does": "running|sleeping|eating|jumping|playing with {thing_one}|chasing {animal_one}|drinking {drink}|swimming|barking|climbing a tree|looking out of the window|lying|sitting|playing the piano|eating {food}|licking {a_person}|fighting with {animal_one}",
    "animal_can": "swim|fly|climb trees|see in the dark|run fast|live in groups|sleep in winter|lay eggs|eat meat|recognise faces|live in the sea|hear well|jump high|bite people",
    "where": "in the park|on the beach|in the street|in the kitchen|in a field|on a stage|in the water|in the snow|near the river|in the garden|at the station|on a bench|in a room|on the grass|at home|in the forest|on a mountain|in front of a house|"
    "in the rain|at school|in a restaurant|on a boat|under a tree|next to a car|outside|inside|by the sea|at the market|on the roof|behind a fence|in the city|at night",
    "a_surface": "a table|the floor|a shelf|a bed|the ground|a chair|the roof|a desk|the grass",
    "did": "bought {thing_one}|lost {thing_one}|sold {thing_one}|broke {thing_one}|won the {sport} match|lost the {sport} match|went to {place}|left {place}|came back from {place}|missed the train|caught a cold|fell asleep|moved to {place}|"
    "met {a_person}|called {a_person}|helped {a_person}|hit {a_person}|cooked {food}|ate {food}|found {animal_one}|finished the work|started a new job|opened a {shop}|closed the {shop}|wrote {writing}|saw {work_a}|paid the bill|stopped smoking|learned {language}",
    "when": "yesterday|last week|in the morning|two years ago|on monday|last night|after dinner|in 1999|at noon|during the war|this year|in summer|a month ago",
    "when_soon": "today|tomorrow|next week|tonight|on friday|before noon|next month|right now|this weekend|in an hour|on my birthday",
    "reason": "it was raining|the {shop} was closed|the {possession} was {state}|there was no money|the weather is nice|nobody was there|the bus was late|it is too expensive|the {job} was ill|the {possession} is {state}|it was cheap|the road was blocked",
    "do": "fix|sell|clean|change|find|buy|check|open|replace|cancel|renew|return|update|remove|connect|charge|wash|pay for|close|store|insure|rent|reset|repair|track|ship|build|paint|install|choose|move|get rid of|protect|save",
    "possession": "car|phone|password|credit card|passport|house|bicycle|computer|reservation|subscription|insurance|bank account|washing machine|bag|laptop|ticket|account|order|room|dog|garden|kitchen|printer|tyre|window|roof|shoe|watch|camera|"
    "flight|hotel booking|driving licence|tax return|sofa|bed|door|key|battery|tv|oven|water bill|appointment|meeting|salary|loan|router|email address|garage|engine|tooth",
    "state": "broken|too slow|late|lost|not working|dirty|wet|too expensive|blocked|empty|hot|cold|noisy|stolen|expired|locked|damaged|new|old|very small|leaking|missing|too heavy|free",
    "judged": "good|bad|great|terrible|safe|dangerous|easy|difficult|boring|excellent|expensive|cheap|friendly|rude|slow|fast|clean|dirty|beautiful|ugly|useful|useless|delicious|awful|wonderful|strange|wrong|fair|unfair|funny|sad|perfect|disappointing|surprising",
    "purpose": "children|travelling|cooking|beginners|old people|winter|work|school|games|sport|sleeping|cutting wood|reading|photography|long distances|small rooms",
    "hour": "six|seven in the morning|eight|nine thirty|noon|three in the afternoon|five|ten at night|midnight",
    "open": "open|close|start|end",
    "opens": "opens|closes",
    "shop": "shop|bank|museum|restaurant|library|school|airport|hospital|cinema|pharmacy|supermarket|station|hotel|post office|gym|market|bakery|zoo|swimming pool|bar",
    "music": "jazz|rock music|classical music|songs by my favourite band|music for sleeping|something quiet|party music|old songs",
    "place": "london|paris|china|india|new york|germany|russia|iraq|syria|japan|israel|egypt|texas|california|brazil|mexico|italy|spain|turkey|iran|australia|canada|chicago|berlin|rome|nigeria|pakistan|afghanistan|ukraine|france|kenya|boston|madrid|greece|chile",
    "meal_table": "table|room|taxi|tour|haircut",
    "number": "two|three|four|five|six|eight|ten|twelve|fifteen|twenty|thirty|fifty|dozens",
    "off": "on|off|up|down",
    "device": "light|heating|tv|radio|oven|fan|lamp|camera|alarm|air conditioning|computer|speaker",
    "room": "kitchen|bedroom|living room|bathroom|garage|office|hall|cellar",
    "account": "savings account|brother|landlord|other account|credit card|parents",
    "language": "french|spanish|german|chinese|japanese|english|italian|arabic|russian|latin",
    "hurt": "killed|injured|dead|missing|rescued|feared dead|arrested",
    "hurt_many": "kills|injures|leaves homeless|traps",
    "disaster": "bombing|earthquake|plane crash|flood|fire|train crash|attack|storm|explosion|shooting|avalanche|protest|election|hurricane|strike|bus accident|landslide|outbreak",
    "power": "president|government|court|parliament|police|army|minister|mayor|prime minister|opposition|central bank|senate",
    "power_does": "rejects|approves|discusses|bans|supports|criticises|delays|promises|plans|denies|signs|warns of|calls for|ends|investigates",
    "topic": "new tax|peace deal|nuclear plan|oil export|health reform|trade deal|election|border wall|climate law|budget|ceasefire|gun law|sanctions|immigration rules|school reform|arms sale|prisoner release|rate cut|vaccine|gay marriage",
    "company": "apple|google|microsoft|boeing|ford|toyota|samsung|facebook|shell|amazon|the bank|the airline|sony|the oil company|nokia|the carmaker",
    "company_does": "announces|cancels|plans|loses lawsuit over|wins contract for|is fined over|delays|reports profit despite|sues over|recalls cars over",
    "market": "rise|fall|jump|drop sharply|recover|hit record|slump|remain steady|close higher|collapse|resume|fail|end without result",
    "meet": "meet|clash|agree|argue|sign accord|break off talks|trade blame|hold talks",
    "crime": "murder|fraud|theft|drugs|hacking|riots|corruption|kidnapping|robbery",
    "work": "film|movie|book|concert|game|show|play|song|novel|series|album|exhibition|speech|lecture|story|ending|plot|acting",
    "work_a": "a film|a football match|tv|a play|a concert|a game|the news|a show",
    "staff": "staff|service|waiter|driver|manager|receptionist|room|food|price|location|music|guide",
    "material": "wood|glass|metal|plastic|water|milk|cotton|steel|paper|oil|sugar|flour|gold|stone|leather|gas|electricity|sunlight",
    "state_of_matter": "heavy|light|hard|soft|expensive|cheap|a metal|a liquid|easy to recycle|found in many countries|used in building|bad for the environment|good for the skin",
    "direction": "north|south|east|west",
}  # fmt: skip
CHOICES = {name: found.split("|") for name, found in GRAMMAR.items()}
HOLE = re.compile(r"\{(\w+)\}")


def everyday(count: int, seed: int = 0, words: Sequence[str] = ()) -> Iterator[str]:
    """`count` different sentences, or fewer if the grammar has no more; the same ones for the same seed.

    words: in half of the sentences one word is exchanged for one of these, since the grammar knows only some hundreds.
    """
    rng = random.Random(seed)
    seen: set[int] = set()
    for _ in range(count * MOST_TRIES):
        if len(seen) == count:
            return
        text = _grow("{text}", rng)
        if words and rng.random() < 0.5:
            parts = text.split(" ")
            parts[rng.randrange(len(parts))] = rng.choice(words)
            text = " ".join(parts)
        key = hash(text)
        if key not in seen:
            seen.add(key)
            yield text


def _grow(text: str, rng: random.Random) -> str:
    """Fill every hole."""
    while "{" in text:
        text = HOLE.sub(lambda hole: rng.choice(CHOICES[hole[1]]), text)
    return text
